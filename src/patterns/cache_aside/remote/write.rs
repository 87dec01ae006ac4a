//! The remote tier: puts and deletions.
use bytes::Bytes;
use futures_util::{StreamExt, stream::FuturesUnordered};

use super::super::{
    RemoteCall,
    remote::fill::Content,
    remote::lookup::{Fault, LONGEST, Remote, RemotePut},
    remote::record::{SEQUENCE, mark, mark_of, number},
    report::Report,
};
use crate::{
    port::Capability,
    store::{Continuation, DeleteOptions, Key, Precondition, PutOptions, Row, Scan, Write},
    time::Instant,
};

impl<V> Remote<V> {
    /// Stores the value of a put. It claims the row first, so that no load in progress overwrites
    /// it, and so that a late copy of this request does not overwrite a newer value.
    pub(crate) async fn put(
        &self,
        report: &Report,
        deadline: Instant,
        row: &str,
        content: Content<'_, V>,
    ) -> RemotePut {
        // Not under this cache's own number: one of its loads would take the claim over.
        let by = (RemoteCall::Put, !self.me);
        let (claim, born) = match self.claim(report, by, deadline, row, Precondition::Any).await {
            Ok(claimed) => claimed,
            Err(Fault::Refused) => {
                report.not_storable();
                return RemotePut::NotStorable;
            }
            Err(_) => return RemotePut::Unknown,
        };
        let ttl = content.ttl;
        if let Some(bytes) = self.encode(report, content, born) {
            let options = PutOptions::new().when(Precondition::Version(claim)).ttl(ttl.min(LONGEST));
            match self.ask(report, RemoteCall::Put, deadline, self.store.put(self.key(row), bytes, options)).await {
                Ok(version) => return RemotePut::Stored(version),
                Err(Fault::Conflict) => return RemotePut::Superseded,
                Err(Fault::Down) => return RemotePut::Unknown,
                Err(Fault::Refused) => report.not_storable(),
            }
        }
        if self.release_version(report, (RemoteCall::Put, row), claim, deadline).await {
            RemotePut::NotStorable
        } else {
            RemotePut::Unknown
        }
    }

    /// Invalidates the row. Returns `true` if that is known to be done.
    pub(crate) async fn invalidate(&self, report: &Report, deadline: Instant, row: &str) -> bool {
        let deleted = self.store.delete(self.key(row), DeleteOptions::new());
        // A row that the store refuses cannot exist.
        !matches!(self.ask(report, RemoteCall::Invalidate, deadline, deleted).await, Err(Fault::Down | Fault::Conflict))
    }

    /// Invalidates the tag. It advances the sequence first and then writes its number into the
    /// tag's mark.
    pub(crate) async fn invalidate_tag(&self, report: &Report, deadline: Instant, tag: &str) -> bool {
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
            if record.as_ref().and_then(|record| number(&record.value)).is_some_and(|number| number >= now) {
                return true;
            }
            let when = record.map_or(Precondition::Absent, |record| Precondition::Version(record.version));
            let options = PutOptions::new().when(when).ttl(LONGEST * 2);
            let put = self.store.put(key, mark(now), options);
            match self.ask(report, RemoteCall::Invalidate, deadline, put).await {
                Ok(_) => return true,
                Err(Fault::Conflict) => {}
                Err(fault) => return matches!(fault, Fault::Refused),
            }
        }
    }

    /// Deletes one page of rows, values and claims. Returns the continuation if another page
    /// follows.
    pub(crate) async fn clear_page(
        &self,
        report: &Report,
        deadline: Instant,
        continuation: Option<&str>,
    ) -> Result<Option<String>, Fault> {
        let mut scan = Scan::partition(&*self.values);
        scan.after = continuation.map(|continuation| Continuation::from(continuation.to_owned()));
        let page = self.ask(report, RemoteCall::Invalidate, deadline, self.store.scan(&scan)).await?;
        self.delete_all(report, deadline, &page.rows).await?;
        Ok(page.next.map(|next| next.as_str().to_owned()))
    }

    async fn delete_all(&self, report: &Report, deadline: Instant, rows: &[Row]) -> Result<(), Fault> {
        let can = self.store.capabilities();
        if can.has(Capability::AtomicBatch) {
            for some in rows.chunks(can.max_batch().max(1)) {
                let writes = some.iter().map(|row| Write::delete(&*row.row, DeleteOptions::new())).collect();
                self.ask(report, RemoteCall::Invalidate, deadline, self.store.batch(&self.values, writes)).await?;
            }
            return Ok(());
        }
        let mut deleted: FuturesUnordered<_> = rows
            .iter()
            .map(|row| {
                let deleted = self.store.delete(self.key(&row.row), DeleteOptions::new());
                self.ask(report, RemoteCall::Invalidate, deadline, deleted)
            })
            .collect();
        while let Some(deleted) = deleted.next().await {
            deleted?;
        }
        Ok(())
    }
}
