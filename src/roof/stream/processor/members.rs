//! The members of a group: each announces itself in a row of the store, and looks at the rows of
//! the others.
//!
//! A row changes with each announcement. A member whose row an observer has seen unchanged for
//! longer than the time between two announcements, on the observer's own clock, is not counted. Its
//! partitions then fall to others, who ask for their leases: only the end of its terms decides that
//! they are free. So no wall clocks are compared, and a slow member loses nothing.
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use futures_util::StreamExt;
use tokio::sync::{mpsc::UnboundedSender, watch};

use super::{
    StreamCall, StreamProcessorConfig, StreamProcessorEvent as Event,
    balance::{Plan, View, plan},
    component::ProcessorCore,
    state::of_store,
};
use crate::{
    port::{AskError, ErrorClass, Failure, PortError, ask},
    race::{First, race},
    store::{DeleteOptions, Key, Precondition, PutOptions, Row, Scan, StoreExt, Version},
    sync::Mutex,
    time::{Instant, scaled},
};

/// Prefix of the rows of members.
pub(super) const PREFIX: &str = "m/";

/// Names the format of a row, so that another one can follow.
const FORM: &str = "member 1";

/// Number of intervals after which the row of a member that is gone is deleted.
const FORGOTTEN_AFTER: u32 = 10;

/// Minimum time between two announcements.
const APART: Duration = Duration::from_millis(100);

/// Maximum number of concurrent requests to resign.
const ASKED_AT_ONCE: usize = 16;

/// Partitions that this member campaigns for or owns, each with the sender that ends its campaign.
pub(super) type Wanted = Mutex<BTreeMap<u16, watch::Sender<bool>>>;

/// A partition to campaign for, until the receiver is `false`.
pub(super) type Want = (u16, watch::Receiver<bool>);

/// The group as one member saw it over time.
#[derive(Debug, Default)]
struct Observed {
    /// The versions of the rows of members, and the times at which they were first seen.
    rows: BTreeMap<String, (Version, Instant)>,
    /// The partitions without an owner, and the times at which that was first seen.
    free: BTreeMap<u16, Instant>,
}

impl Observed {
    /// Records the rows of a scan that returned at `now`. Returns the members, and the rows that
    /// can be deleted.
    fn see(&mut self, rows: &[Row], now: Instant, config: &StreamProcessorConfig) -> (View, Vec<(String, Version)>) {
        let interval = config.rebalance_interval;
        // A partition whose owner died before this member began has another one by then.
        let settled = interval.saturating_mul(2).saturating_add(config.election.term);
        let (mut view, mut gone, mut seen) = (View::default(), Vec::new(), BTreeMap::new());
        for row in rows {
            let member = row.row.strip_prefix(PREFIX).unwrap_or_default();
            let since = match self.rows.get(member) {
                Some((version, since)) if *version == row.version => *since,
                _ => now,
            };
            seen.insert(member.to_owned(), (row.version, since));
            let silent = now - since;
            if silent >= interval.saturating_mul(FORGOTTEN_AFTER) {
                gone.push((row.row.clone(), row.version));
            }
            let Some(Announced { beat, partitions }) = decode(&row.value) else { continue };
            if silent >= scaled(interval, 0.4) {
                view.left.extend(partitions);
                continue;
            }
            view.live.insert(member.to_owned(), partitions);
            if scaled(interval / 4, beat as f64) < settled {
                view.newcomers.insert(member.to_owned());
            }
        }
        self.rows = seen;
        (view, gone)
    }

    /// Adds the partitions that nobody took for a whole interval: the member to which they fell is
    /// gone, too.
    fn see_free(&mut self, view: &mut View, partitions: u16, now: Instant, interval: Duration) {
        let owned: BTreeSet<u16> = view.live.values().flatten().copied().collect();
        let free = (0..partitions).filter(|partition| !owned.contains(partition));
        self.free = free.map(|partition| (partition, *self.free.get(&partition).unwrap_or(&now))).collect();
        view.left
            .extend(self.free.iter().filter(|(_, since)| now - **since >= interval).map(|(partition, _)| *partition));
    }
}

fn encode(beats: u64, partitions: impl IntoIterator<Item = u16>) -> String {
    let partitions: Vec<_> = partitions.into_iter().map(|partition| partition.to_string()).collect();
    format!("{FORM}\nbeat {beats}\nowns {}\n", partitions.join(" "))
}

/// The contents of a member's row.
pub(super) struct Announced {
    /// Number of announcements of this member, at least four in a rebalance interval.
    beat: u64,
    pub(super) partitions: BTreeSet<u16>,
}

/// Returns the contents of a member's row; `None` if it cannot be read.
pub(super) fn decode(row: &[u8]) -> Option<Announced> {
    let lines = std::str::from_utf8(row).ok()?.strip_prefix(FORM)?;
    let line = |name| lines.lines().find_map(|line| line.strip_prefix(name));
    let partitions = line("owns ")?.split_terminator(' ').map(|partition| partition.parse().ok());
    Some(Announced { beat: line("beat ")?.parse().ok()?, partitions: partitions.collect::<Option<_>>()? })
}

impl ProcessorCore {
    /// Announces this member and divides the partitions, until a permanent failure. After `stopped`
    /// it only announces.
    pub(super) async fn manage(
        &self,
        wanted: &Wanted,
        wants: &UnboundedSender<Want>,
        stopped: watch::Receiver<bool>,
    ) -> Result<(), PortError> {
        match race(self.announce_often(), self.look_often(wanted, wants, stopped)).await {
            First::One(failed) | First::Other(failed) => failed,
        }
    }

    async fn announce_often(&self) -> Result<(), PortError> {
        let row = format!("{PREFIX}{}", self.member);
        let key = Key::new(&self.partition, &row);
        let (pause, limit) = (self.config.load().rebalance_interval / 4, self.call_timeout());
        for beat in 1_u64.. {
            let value = encode(beat, self.holdings.owned.lock().keys().copied());
            let announced = ask(&self.clock, limit, self.store.put(key, value.into(), PutOptions::new())).await;
            self.told(StreamCall::Members, announced.map_err(error_of))?;
            let pause = scaled(pause, 0.9 + 0.1 * self.entropy.unit());
            // Many partitions that are claimed at once are one announcement.
            self.clock.sleep(pause.min(APART)).await;
            race(self.holdings.announce.notified(), self.clock.sleep(pause.saturating_sub(APART))).await;
        }
        Ok(())
    }

    async fn look_often(
        &self,
        wanted: &Wanted,
        wants: &UnboundedSender<Want>,
        stopped: watch::Receiver<bool>,
    ) -> Result<(), PortError> {
        let (mut observed, mut count) = (Observed::default(), 0);
        let pause = self.config.load().rebalance_interval / 2;
        loop {
            let rows = self.store.scan_all(Scan::partition(&*self.partition).prefix(PREFIX));
            let rows = ask(&self.clock, pause, rows).await;
            if let Some(rows) = self.told(StreamCall::Members, rows.map_err(error_of))? {
                let now = self.clock.now();
                let (mut view, gone) = observed.see(&rows, now, &self.config.now());
                let own = self.holdings.owned.lock().keys().copied().collect();
                if view.live.insert(self.member.clone(), own).is_none() {
                    view.newcomers.insert(self.member.clone());
                }
                observed.see_free(&mut view, self.topic.partitions(), now, self.config.load().rebalance_interval);
                let members = view.live.len();
                if std::mem::replace(&mut count, members) != count {
                    self.event(|| Event::MembersChanged { members });
                }
                let plan = match *stopped.borrow() {
                    true => Plan::default(),
                    false => plan(self.topic.partitions(), &view, &self.member),
                };
                self.want(&plan, wanted, wants);
                let rest = async {
                    self.ask_all(&plan).await;
                    self.forget(gone).await;
                };
                race(rest, self.clock.sleep(pause)).await;
            }
            let pause = scaled(pause, 0.9 + 0.1 * self.entropy.unit());
            race(self.holdings.look.notified(), self.clock.sleep(pause)).await;
        }
    }

    /// Begins the campaigns of a plan, and ends all others.
    fn want(&self, plan: &Plan, wanted: &Wanted, wants: &UnboundedSender<Want>) {
        let asked = plan.ask.iter().map(|(_, partition)| *partition);
        let desired: BTreeSet<u16> = plan.take.iter().copied().chain(asked).collect();
        let mut wanted = wanted.lock();
        for (partition, wants) in wanted.iter() {
            wants.send_replace(desired.contains(partition));
        }
        for partition in desired {
            wanted.entry(partition).or_insert_with(|| {
                let (sender, receiver) = watch::channel(true);
                // The receiver lives as long as the run.
                let _ = wants.send((partition, receiver));
                sender
            });
        }
    }

    /// Asks the owners of a plan to resign.
    async fn ask_all(&self, plan: &Plan) {
        let limit = self.call_timeout();
        let asks = plan.ask.iter().map(|(owner, partition)| async move {
            let Ok(election) = self.election(*partition) else { return };
            let is_owner = |holder: &str| holder.strip_prefix(owner.as_str()).is_some_and(|rest| rest.starts_with('#'));
            if let Err(error) = ask(&self.clock, limit, election.request_resign_if(is_owner)).await {
                self.failed(StreamCall::Resign, Some(*partition), error.kind());
            }
        });
        futures_util::stream::iter(asks).for_each_concurrent(ASKED_AT_ONCE, |ask| ask).await;
    }

    /// Deletes rows of members that are gone.
    async fn forget(&self, gone: Vec<(String, Version)>) {
        for (row, version) in gone {
            let options = DeleteOptions::new().when(Precondition::Version(version));
            let deleted = self.store.delete(Key::new(&self.partition, &row), options);
            // Another member was faster, or the next look tries again.
            let _ = ask(&self.clock, self.call_timeout(), deleted).await;
        }
    }

    /// Deletes the row of this member, so that the others need not wait for its silence.
    pub(super) async fn leave(&self) {
        let row = format!("{PREFIX}{}", self.member);
        let deleted = self.store.delete(Key::new(&self.partition, &row), DeleteOptions::new());
        if let Err(error) = ask(&self.clock, self.call_timeout(), deleted).await {
            self.failed(StreamCall::Members, None, error.kind());
        }
    }

    /// Reports a failure; a permanent one is returned.
    fn told<T>(&self, call: StreamCall, result: Result<T, PortError>) -> Result<Option<T>, PortError> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) => {
                self.failed(call, None, Some(error.kind()));
                if error.class() == ErrorClass::Permanent { Err(error) } else { Ok(None) }
            }
        }
    }
}

fn error_of<E: Failure + From<PortError> + Into<crate::store::StoreError>>(error: AskError<E>) -> PortError {
    of_store(error.or_timed_out("the store of a stream did not answer in time").into())
}
