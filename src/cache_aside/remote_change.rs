//! The remote tier: what is put there, and what is deleted.
use std::time::Duration;

use bytes::Bytes;

use super::{
    RemoteCall,
    remote::{Fault, LONGEST, Put, Remote},
    report::Report,
    wire::{SEQUENCE, mark_of, number},
};
use crate::{
    port::Capability,
    store::{DeleteOptions, Key, Precondition, PutOptions, Row, Scan, Write},
};

impl<V> Remote<V> {
    /// Stores what the user says. A claim comes first, so that no load that is under way stores over it, and no late request of this
    /// one stores over what comes after.
    pub(super) async fn put(&self, report: &Report, row: &str, value: &V, ttl: Duration, tags: &[String]) -> Put {
        let deadline = report.now() + self.config.timeout;
        // Not as one of this cache's loads, which would take it over.
        let by = (RemoteCall::Put, !self.me);
        let (claim, born) = match self.claim(report, by, deadline, row, Precondition::Any).await {
            Ok(claimed) => claimed,
            Err(Fault::Refused) => {
                report.not_storable();
                return Put::NotStorable;
            }
            Err(_) => return Put::Unknown,
        };
        if let Some(bytes) = self.encode(report, Some(value), ttl, tags, born) {
            let options = PutOptions::new().when(Precondition::Version(claim)).ttl(ttl.min(LONGEST));
            match self.ask(report, RemoteCall::Put, deadline, self.store.put(self.key(row), bytes, options)).await {
                Ok(version) => return Put::Stored(version),
                Err(Fault::Conflict) => return Put::Overtaken,
                Err(Fault::Down) => return Put::Unknown,
                Err(Fault::Refused) => report.not_storable(),
            }
        }
        if self.release_version(report, row, claim).await { Put::NotStorable } else { Put::Unknown }
    }

    /// Invalidates the row; says whether it is known to be.
    pub(super) async fn invalidate(&self, report: &Report, row: &str) -> bool {
        let deadline = report.now() + self.config.timeout;
        let deleted = self.store.delete(self.key(row), DeleteOptions::new());
        // What the store does not take is not there.
        !matches!(self.ask(report, RemoteCall::Invalidate, deadline, deleted).await, Err(Fault::Down | Fault::Conflict))
    }

    /// Invalidates the tag: the sequence first, then the tag's own mark with its number.
    pub(super) async fn invalidate_tag(&self, report: &Report, tag: &str) -> bool {
        let deadline = report.now() + self.config.timeout;
        let put = self.store.put(Key::new(&self.marks, SEQUENCE), Bytes::new(), PutOptions::new());
        let now = match self.ask(report, RemoteCall::Invalidate, deadline, put).await {
            Ok(version) => version.as_u64(),
            Err(_) => return false,
        };
        let row = mark_of(tag);
        let key = Key::new(&self.marks, &row);
        loop {
            let record = match self.ask(report, RemoteCall::Invalidate, deadline, self.store.get(key)).await {
                Ok(record) => record,
                Err(fault) => return matches!(fault, Fault::Refused),
            };
            if record.as_ref().is_some_and(|record| number(&record.value) >= now) {
                return true;
            }
            let when = record.map_or(Precondition::Absent, |record| Precondition::Version(record.version));
            let options = PutOptions::new().when(when).ttl(LONGEST * 2);
            let put = self.store.put(key, now.to_string().into(), options);
            match self.ask(report, RemoteCall::Invalidate, deadline, put).await {
                Ok(_) => return true,
                Err(Fault::Conflict) => {}
                Err(fault) => return matches!(fault, Fault::Refused),
            }
        }
    }

    /// Deletes every row, values and claims. Each page has the time-out for itself.
    pub(super) async fn clear(&self, report: &Report) -> bool {
        let mut scan = Scan::partition(&*self.values);
        loop {
            let deadline = report.now() + self.config.timeout;
            let Ok(page) = self.ask(report, RemoteCall::Invalidate, deadline, self.store.scan(&scan)).await else {
                return false;
            };
            if self.delete_all(report, &page.rows).await.is_err() {
                return false;
            }
            match page.next {
                Some(next) => scan.after = Some(next),
                None => return true,
            }
        }
    }

    async fn delete_all(&self, report: &Report, rows: &[Row]) -> Result<(), Fault> {
        let can = self.store.capabilities();
        if can.has(Capability::AtomicBatch) {
            for some in rows.chunks(can.max_batch().max(1)) {
                let deadline = report.now() + self.config.timeout;
                let writes = some.iter().map(|row| Write::delete(&*row.row, DeleteOptions::new())).collect();
                self.ask(report, RemoteCall::Invalidate, deadline, self.store.batch(&self.values, writes)).await?;
            }
        } else {
            for row in rows {
                let deadline = report.now() + self.config.timeout;
                let deleted = self.store.delete(self.key(&row.row), DeleteOptions::new());
                self.ask(report, RemoteCall::Invalidate, deadline, deleted).await?;
            }
        }
        Ok(())
    }
}
