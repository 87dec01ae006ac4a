//! Streams: the partitions of a group.
use std::collections::BTreeSet;

use super::super::{
    panel::{Look, Order, Panel, Source, View, ready, unknown},
    readout::{Note, ReadOut, Table, Trouble, count},
    settings::{self, Settings},
};
use crate::{
    port::BoxFuture,
    stream::{PartitionState, StreamProcessor, StreamProcessorConfig},
};

/// Number of unfinished events of a partition from which it is behind.
const BEHIND: u64 = 10_000;

/// Prefix of the parts of a stream.
const PARTITION: &str = "partition ";

impl Panel for StreamProcessor {
    fn view(&self) -> View {
        View(Box::new(self.clone()))
    }
}

impl Source for StreamProcessor {
    fn kind(&self) -> &'static str {
        "stream"
    }

    fn asks_engine(&self) -> bool {
        true
    }

    fn has_parts(&self) -> bool {
        true
    }

    fn settings(&self, of: Option<&str>) -> Option<Box<dyn Settings + '_>> {
        if of.is_some() { None } else { settings::of::<StreamProcessorConfig, _>(self) }
    }

    fn read<'a>(&'a self, look: &'a Look) -> BoxFuture<'a, Result<ReadOut, String>> {
        Box::pin(async move {
            let states = self.read_state().await.map_err(|error| error.to_string())?;
            Ok(match &look.of {
                None => {
                    let out = whole(self, &states);
                    match self.dead_letters() {
                        Some(queue) => {
                            let dead = queue.depth().await.map(|depth| depth.total().to_string());
                            out.fact("dead letters", dead.unwrap_or_else(|error| format!("away: {error}")))
                        }
                        None => out.fact("dead letters", "no queue: a partition halts instead"),
                    }
                }
                Some(of) => {
                    let is_meant = |state: &&PartitionState| format!("{PARTITION}{}", state.partition) == *of;
                    states.iter().find(is_meant).map_or_else(|| ReadOut::new("gone"), |state| one(self, state))
                }
            })
        })
    }

    fn act<'a>(&'a self, order: &'a Order) -> BoxFuture<'a, Result<String, String>> {
        let partition = order.part().strip_prefix(PARTITION).and_then(|number| number.parse().ok());
        ready(match (order.action.as_str(), partition) {
            ("resume", Some(partition)) => match self.resume(partition) {
                true => Ok("The partition goes on.".to_owned()),
                false => Err("this process does not own the partition, or it is not halted".to_owned()),
            },
            _ => unknown(order),
        })
    }
}

fn whole(processor: &StreamProcessor, states: &[PartitionState]) -> ReadOut {
    let lag: u64 = states.iter().map(|state| state.lag).sum();
    let lost: u64 = states.iter().map(|state| state.lost).sum();
    let halted = states.iter().filter(|state| state.halted.is_some()).count();
    let owned = states.iter().filter(|state| state.owner.is_some()).count();
    let behind = states.iter().filter(|state| state.lag >= BEHIND).count();
    let own: BTreeSet<_> = processor.state().iter().map(|state| state.partition).collect();
    let of = |n: usize| format!("{n} of {}", count(states.len() as u64, "partition"));
    let is_known = states.iter().all(|state| state.owner.is_none() || own.contains(&state.partition));
    let mut out = match (halted, behind) {
        (1.., _) => ReadOut::new("halted").trouble(Trouble::Stuck, format!("{} halted", of(halted))),
        (0, 1..) => {
            let why = format!("{} have {BEHIND} unfinished events or more", of(behind));
            ReadOut::new("behind").trouble(Trouble::Behind, why)
        }
        (0, 0) if owned < states.len() && lag > 0 => {
            let why = format!("{} have no owner", of(states.len() - owned));
            ReadOut::new("without owners").trouble(Trouble::Leaderless, why)
        }
        (0, 0) => ReadOut::new("running"),
    };
    out = out.level("lag", lag as f64).fact("partitions", states.len()).fact("owned", owned).fact("lost", lost);
    if !is_known {
        out = out.fact("halts of other processes", "not known here");
    }
    let mut table = Table::new("Partitions", &["partition", "owner", "offset", "lag", "in flight", "lost", "halted"]);
    for state in states {
        let number = state.partition.to_string();
        let cells = [
            number.clone(),
            state.owner.clone().unwrap_or_default(),
            state.watermark.to_string(),
            state.lag.to_string(),
            state.in_flight.to_string(),
            state.lost.to_string(),
            state.halted.clone().unwrap_or_default(),
        ];
        table.push_of(format!("{PARTITION}{number}"), state.halted.is_some(), cells);
    }
    out.table(table)
}

fn one(processor: &StreamProcessor, state: &PartitionState) -> ReadOut {
    let mut out = match &state.halted {
        Some(why) => ReadOut::new("halted").trouble(Trouble::Stuck, why.clone()),
        None => ReadOut::new("running"),
    };
    let is_known = state.owner.is_none() || processor.state().iter().any(|own| own.partition == state.partition);
    if !is_known {
        out.why = "whether it is halted only its owner knows".to_owned();
    }
    out = out
        .fact("owner", state.owner.as_deref().unwrap_or("none"))
        .fact("offset: finished up to", state.watermark)
        .fact("lag", state.lag)
        .fact("in flight", state.in_flight)
        .fact("lost", state.lost)
        .fact("reset of the offset", "not possible while the group runs: its owner alone writes it");
    // Only its owner lets it go on.
    let is_own = processor.state().iter().any(|own| own.partition == state.partition && own.halted.is_some());
    if is_own {
        let effect = "The next owner reads the checkpoint again, and tries the event that halted the partition.";
        out = out.action("resume", "Resume", effect, state.watermark, Note::None);
    }
    out
}
