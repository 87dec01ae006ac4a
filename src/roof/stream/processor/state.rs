//! The state of partitions, for people and metrics.
use std::collections::BTreeMap;

use futures_util::{StreamExt, TryStreamExt, stream};

use super::{StreamProcessor, checkpoint::Checkpoint, checkpoint_store, members};
use crate::{
    port::{PortError, PortErrorKind},
    store::{Scan, StoreError, StoreExt},
};

/// Number of concurrent requests to the topic.
const ASKED_AT_ONCE: usize = 16;

/// The state of one partition, as its group processes it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartitionState {
    /// The partition.
    pub partition: u16,
    /// Member that owns it, as far as known.
    pub owner: Option<String>,
    /// Position up to which all events are finished.
    pub watermark: u64,
    /// Number of events that are not finished. The owner knows the end of the topic from its last
    /// read; one that is behind or halted asks for it each 5 s.
    /// [`read_state`](StreamProcessor::read_state) asks, too.
    pub lag: u64,
    /// Number of handlers that run; 0 for a partition of another member.
    pub in_flight: usize,
    /// Number of events that were lost, because the topic no longer had them.
    pub lost: u64,
    /// Reason for which the partition halted.
    pub halted: Option<String>,
    /// Position of the next event of the topic, as far as its owner knows; 0 if it has not begun.
    pub(super) end: u64,
}

impl PartitionState {
    pub(super) fn new(partition: u16, owner: Option<String>) -> Self {
        Self { partition, owner, watermark: 0, lag: 0, in_flight: 0, lost: 0, halted: None, end: 0 }
    }

    /// Adds what the checkpoint has, in a topic that ends before `next`.
    fn recorded(mut self, record: Option<&[u8]>, next: u64) -> Result<Self, PortError> {
        let checkpoint = match record.map(Checkpoint::decode).transpose() {
            Ok(checkpoint) => checkpoint.unwrap_or_default(),
            // Its owner says so.
            Err(_) if self.halted.is_some() => Checkpoint::default(),
            Err(why) => return Err(PortError::new(PortErrorKind::Corrupt, why)),
        };
        self.watermark = checkpoint.finished.watermark();
        self.lag = lag(next, &checkpoint.finished);
        self.lost = checkpoint.lost;
        Ok(self)
    }
}

impl StreamProcessor {
    /// Returns the state of the partitions that this member owns, in their order.
    pub fn state(&self) -> Vec<PartitionState> {
        self.0.holdings.owned.lock().values().cloned().collect()
    }

    /// Lets a halted partition of this member go on, once the reason is repaired. Returns `false`
    /// if this member does not own it, or if it is not halted.
    ///
    /// Its owner hands it over, and the member to which it falls claims it anew: it reads the
    /// checkpoint again, and counts the attempts of an event from the beginning.
    pub fn resume(&self, partition: u16) -> bool {
        let holdings = &self.0.holdings;
        let is_halted = holdings.owned.lock().get(&partition).is_some_and(|state| state.halted.is_some());
        let alarm = holdings.alarm(partition).filter(|_| is_halted);
        alarm.inspect(|alarm| alarm.resume.notify_one()).is_some()
    }

    /// Reads the state of all partitions of the group, in their order. A checkpoint is up to
    /// [`checkpoint_interval`](super::StreamProcessorConfig::checkpoint_interval) old, and a list
    /// of a member's partitions up to a quarter of
    /// [`rebalance_interval`](super::StreamProcessorConfig::rebalance_interval).
    ///
    /// It costs one request for each partition, 16 of them at a time, and the scans of the
    /// checkpoints and of the members. Any process may call it, also one that does not
    /// [`run`](Self::run).
    ///
    /// # Errors
    /// Those of the topic and of the store, and `Corrupt` for a checkpoint that cannot be read.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn read_state(&self) -> Result<Vec<PartitionState>, PortError> {
        let core = &*self.0;
        let rows = core.store.scan_all(Scan::partition(&*core.partition).prefix(members::PREFIX)).await;
        let mut owners = BTreeMap::new();
        for row in rows.map_err(of_store)? {
            let member = row.row.strip_prefix(members::PREFIX).unwrap_or_default().to_owned();
            let partitions = members::decode(&row.value).map(|announced| announced.partitions).unwrap_or_default();
            owners.extend(partitions.into_iter().map(|partition| (partition, member.clone())));
        }
        let rows = core.store.scan_all(Scan::partition(&*core.partition).prefix(checkpoint_store::PREFIX)).await;
        let mut records: BTreeMap<_, _> = rows.map_err(of_store)?.into_iter().map(|row| (row.row, row.value)).collect();
        let mut own = core.holdings.owned.lock().clone();
        // Behind the checkpoints: an event that is appended meanwhile is counted.
        let bounds = (0..core.topic.partitions()).map(|partition| core.topic.bounds(partition));
        let mut bounds = stream::iter(bounds).buffered(ASKED_AT_ONCE);
        let mut states = Vec::new();
        for partition in 0..core.topic.partitions() {
            let Some(next) = bounds.try_next().await?.map(|bounds| bounds.next) else { break };
            let own = own.remove(&partition);
            let record = records.remove(&checkpoint_store::row(partition));
            states.push(match own {
                Some(own) if own.end > 0 => {
                    PartitionState { lag: own.lag.saturating_add(next.saturating_sub(own.end)), ..own }
                }
                own => own
                    .unwrap_or_else(|| PartitionState::new(partition, owners.remove(&partition)))
                    .recorded(record.as_deref(), next)?,
            });
        }
        Ok(states)
    }
}

/// Returns the number of unfinished events below `next`.
pub(super) fn lag(next: u64, finished: &super::finished::Finished) -> u64 {
    next.saturating_sub(finished.watermark() + 1).saturating_sub(finished.count_above())
}

/// Returns the error of a request that has no precondition.
pub(super) fn of_store(error: StoreError) -> PortError {
    match error {
        StoreError::Failed(error) => error,
        other => PortError::new(PortErrorKind::Other, other.to_string()),
    }
}
