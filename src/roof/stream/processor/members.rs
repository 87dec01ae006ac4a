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
    StreamCall, StreamProcessorEvent as Event,
    balance::{Plan, plan},
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

/// Live members, each with its partitions.
type LiveMembers = BTreeMap<String, BTreeSet<u16>>;

/// The rows of other members, as this one saw them: the version, and the time at which it was first
/// seen.
#[derive(Debug, Default)]
pub(super) struct Observed(BTreeMap<String, (Version, Instant)>);

impl Observed {
    /// Records the rows of a scan that returned at `now`. Returns the live members with their
    /// partitions, and the rows that can be deleted.
    pub(super) fn see(
        &mut self,
        rows: &[Row],
        now: Instant,
        interval: Duration,
    ) -> (LiveMembers, Vec<(String, Version)>) {
        let (mut live, mut gone, mut seen) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
        for row in rows {
            let member = row.row.strip_prefix(PREFIX).unwrap_or_default();
            let since = match self.0.get(member) {
                Some((version, since)) if *version == row.version => *since,
                _ => now,
            };
            seen.insert(member.to_owned(), (row.version, since));
            let silent = now - since;
            if silent >= interval.saturating_mul(FORGOTTEN_AFTER) {
                gone.push((row.row.clone(), row.version));
            } else if silent < scaled(interval, 0.4)
                && let Some(partitions) = decode(&row.value)
            {
                live.insert(member.to_owned(), partitions.into_iter().collect());
            }
        }
        self.0 = seen;
        (live, gone)
    }
}

fn encode(beats: u64, partitions: impl IntoIterator<Item = u16>) -> String {
    let partitions: Vec<_> = partitions.into_iter().map(|partition| partition.to_string()).collect();
    format!("{FORM}\nbeat {beats}\nowns {}\n", partitions.join(" "))
}

/// Returns the partitions in a member's row; `None` if it cannot be read.
pub(super) fn decode(row: &[u8]) -> Option<Vec<u16>> {
    let lines = std::str::from_utf8(row).ok()?.strip_prefix(FORM)?;
    let owns = lines.lines().find_map(|line| line.strip_prefix("owns "))?;
    owns.split_terminator(' ').map(|partition| partition.parse().ok()).collect()
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
        let (pause, limit) = (self.config.rebalance_interval / 4, self.config.election.call_timeout);
        for beat in 1_u64.. {
            let value = encode(beat, self.owned.lock().keys().copied());
            let announced = ask(&self.clock, limit, self.store.put(key, value.into(), PutOptions::new())).await;
            self.told(StreamCall::Members, announced.map_err(error_of))?;
            let pause = scaled(pause, 0.9 + 0.1 * self.entropy.unit());
            // Many partitions that are claimed at once are one announcement.
            self.clock.sleep(pause.min(APART)).await;
            race(self.announce.notified(), self.clock.sleep(pause.saturating_sub(APART))).await;
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
        let pause = self.config.rebalance_interval / 2;
        loop {
            let rows = self.store.scan_all(Scan::partition(&*self.partition).prefix(PREFIX));
            let rows = ask(&self.clock, pause, rows).await;
            if let Some(rows) = self.told(StreamCall::Members, rows.map_err(error_of))? {
                let (mut members, gone) = observed.see(&rows, self.clock.now(), self.config.rebalance_interval);
                members.insert(self.member.clone(), self.owned.lock().keys().copied().collect());
                if std::mem::replace(&mut count, members.len()) != count {
                    self.event(|| Event::MembersChanged { members: members.len() });
                }
                let plan = match *stopped.borrow() {
                    true => Plan::default(),
                    false => plan(self.topic.partitions(), &members, &self.member),
                };
                self.want(&plan, wanted, wants);
                let rest = async {
                    self.ask_all(&plan).await;
                    self.forget(gone).await;
                };
                race(rest, self.clock.sleep(pause)).await;
            }
            let pause = scaled(pause, 0.9 + 0.1 * self.entropy.unit());
            race(self.look.notified(), self.clock.sleep(pause)).await;
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
        let limit = self.config.election.call_timeout;
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
            let _ = ask(&self.clock, self.config.election.call_timeout, deleted).await;
        }
    }

    /// Deletes the row of this member, so that the others need not wait for its silence.
    pub(super) async fn leave(&self) {
        let row = format!("{PREFIX}{}", self.member);
        let deleted = self.store.delete(Key::new(&self.partition, &row), DeleteOptions::new());
        if let Err(error) = ask(&self.clock, self.config.election.call_timeout, deleted).await {
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
