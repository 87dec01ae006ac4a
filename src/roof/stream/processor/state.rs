//! The state of partitions, for people and metrics.
use std::{collections::BTreeMap, sync::Arc};

use super::{StreamProcessor, checkpoint::Checkpoint, component::ProcessorCore, members};
use crate::{
    port::{PortError, PortErrorKind},
    store::{Key, Scan, StoreError, StoreExt},
};

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
    /// Number of events that are not finished, as far as their owner has read or
    /// [`read_state`](StreamProcessor::read_state) has asked.
    pub lag: u64,
    /// Number of handlers that run; 0 for a partition of another member.
    pub in_flight: usize,
    /// Number of events that were lost, because the topic no longer had them.
    pub lost: u64,
    /// Reason for which the partition halted.
    pub halted: Option<String>,
    /// Position of the next event of the topic, as far as its owner has read.
    pub(super) end: u64,
}

impl PartitionState {
    pub(super) fn new(partition: u16, owner: Option<String>) -> Self {
        Self { partition, owner, watermark: 0, lag: 0, in_flight: 0, lost: 0, halted: None, end: 1 }
    }
}

impl StreamProcessor {
    /// Returns the state of the partitions that this member owns, in their order.
    pub fn state(&self) -> Vec<PartitionState> {
        self.0.owned.lock().values().cloned().collect()
    }

    /// Reads the state of all partitions of the group, in their order. A checkpoint is up to
    /// [`checkpoint_interval`](super::StreamProcessorConfig::checkpoint_interval) old, and a list
    /// of a member's partitions up to a quarter of
    /// [`rebalance_interval`](super::StreamProcessorConfig::rebalance_interval).
    ///
    /// It costs two requests for each partition, and one for the members. Any process may call it,
    /// also one that does not [`run`](Self::run).
    ///
    /// # Errors
    /// Those of the topic and of the store, and `Corrupt` for a checkpoint that cannot be read.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn read_state(&self) -> Result<Vec<PartitionState>, PortError> {
        self.0.read_state().await
    }
}

impl ProcessorCore {
    async fn read_state(self: &Arc<Self>) -> Result<Vec<PartitionState>, PortError> {
        let rows = self.store.scan_all(Scan::partition(&*self.partition).prefix(members::PREFIX)).await;
        let mut owners = BTreeMap::new();
        for row in rows.map_err(of_store)? {
            let member = row.row.strip_prefix(members::PREFIX).unwrap_or_default().to_owned();
            for partition in members::decode(&row.value).unwrap_or_default() {
                owners.insert(partition, member.clone());
            }
        }
        let own = self.owned.lock().clone();
        let mut states = Vec::new();
        for partition in 0..self.topic.partitions() {
            let bounds = self.topic.bounds(partition).await?;
            if let Some(own) = own.get(&partition) {
                let lag = own.lag.saturating_add(bounds.next.saturating_sub(own.end));
                states.push(PartitionState { lag, ..own.clone() });
                continue;
            }
            let mut state = PartitionState::new(partition, owners.remove(&partition));
            let row = super::records::row(partition);
            let record = self.store.get(Key::new(&self.partition, &row)).await.map_err(of_store)?;
            let checkpoint = record.map(|record| Checkpoint::decode(&record.value)).transpose();
            let checkpoint = checkpoint.map_err(|why| PortError::new(PortErrorKind::Corrupt, why))?.unwrap_or_default();
            state.watermark = checkpoint.finished.watermark();
            state.lag = lag(bounds.next, &checkpoint.finished);
            state.lost = checkpoint.lost;
            states.push(state);
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
