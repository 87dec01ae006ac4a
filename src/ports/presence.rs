//! The members of a fleet: one row for each process, which expires unless it is renewed.
//!
//! The rows are read only by a process that is about to act. Their life is the store's: a process
//! that has died is a member for [`TTL`] at most.
use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use crate::{
    port::{AskError, ask_on_time},
    store::{DeleteOptions, Key, PutOptions, Row, Scan, Store, StoreError},
    time::Clock,
};

/// Life of a row, by the store's clock.
pub(crate) const TTL: Duration = Duration::from_secs(30);

/// Interval between two renewals of a row.
pub(crate) const RENEW_EVERY: Duration = Duration::from_secs(10);

/// Time for which a row certainly exists, by the clock of the process, from the start of the
/// request that wrote it. The rest allows for clocks that run at different rates.
pub(crate) const VALID_FOR: Duration = Duration::from_secs(25);

/// Maximum number of members of a fleet that are read.
pub(crate) const MAX_MEMBERS: usize = 500;

/// Prefix of the row of a member. A partition may have other rows.
const MEMBER: &str = "member ";

/// One member of a fleet.
pub(crate) struct Presence {
    store: Arc<dyn Store>,
    clock: Clock,
    limit: Duration,
    pub(crate) partition: String,
    row: String,
}

/// The rows of a fleet's partition at one moment.
pub(crate) struct Fleet {
    /// Number of members.
    pub(crate) members: usize,
    /// The members' names, and what each has written into its row.
    pub(crate) reports: Vec<(String, Bytes)>,
    /// The other rows.
    pub(crate) rows: Vec<Row>,
}

impl Presence {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        clock: Clock,
        limit: Duration,
        (partition, member): (String, &str),
    ) -> Self {
        Self { store, clock, limit, partition, row: format!("{MEMBER}{member}") }
    }

    /// Returns the longest key that is used.
    pub(crate) fn longest_key(&self) -> usize {
        self.partition.len().max(self.row.len())
    }

    /// Writes or renews this process's row.
    pub(crate) async fn renew(&self) -> Result<(), AskError<StoreError>> {
        self.report(Bytes::new()).await
    }

    /// Writes or renews this process's row, with what it reports of itself.
    pub(crate) async fn report(&self, report: Bytes) -> Result<(), AskError<StoreError>> {
        self.ask(self.store.put(self.key(&self.row), report, PutOptions::new().ttl(TTL))).await.map(|_| ())
    }

    /// Deletes this process's row.
    pub(crate) async fn leave(&self) -> Result<(), AskError<StoreError>> {
        self.ask(self.store.delete(self.key(&self.row), DeleteOptions::new())).await.map(|_| ())
    }

    /// Reads all rows. Returns `None` if there are more than [`MAX_MEMBERS`].
    pub(crate) async fn list(&self) -> Result<Option<Fleet>, AskError<StoreError>> {
        let mut fleet = Fleet { members: 0, reports: Vec::new(), rows: Vec::new() };
        // One request, where the store has pages of that size.
        let mut scan = Scan::partition(&self.partition).limit(2 * MAX_MEMBERS);
        loop {
            let page = self.ask(self.store.scan(&scan)).await?;
            for row in page.rows {
                match row.row.strip_prefix(MEMBER) {
                    Some(member) => {
                        fleet.members += 1;
                        fleet.reports.push((member.to_owned(), row.value));
                    }
                    None => fleet.rows.push(row),
                }
            }
            if fleet.members > MAX_MEMBERS {
                return Ok(None);
            }
            match page.next {
                Some(next) => scan.after = Some(next),
                None => return Ok(Some(fleet)),
            }
        }
    }

    pub(crate) fn key<'a>(&'a self, row: &'a str) -> Key<'a> {
        Key::new(&self.partition, row)
    }

    pub(crate) fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// Makes one request. An answer that is seen late counts as none.
    pub(crate) async fn ask<T>(
        &self,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, AskError<StoreError>> {
        ask_on_time(&self.clock, self.limit, request).await
    }
}
