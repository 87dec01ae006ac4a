//! Reads of single records: those that meet share a statement.
use std::sync::Arc;

use bytes::Bytes;
use tokio_postgres::{Row, types::Type};

use super::super::link::{Effect, Link, Param};
use super::sql::version;
use crate::{
    gather::SendBatch,
    port::{BoxFuture, PortError, PortErrorKind},
    store::{Key, Record},
};

/// The record to read: its partition and row.
pub(crate) struct Wanted {
    partition: String,
    row: String,
}

/// The answer to a read.
pub(crate) enum Found {
    Done(Result<Option<Record>, PortError>),
    /// The record is too large to share a statement, or damaged.
    Large,
}

/// Maximum size of the values that one statement returns to several readers.
const SHARED_BYTES: i64 = 1 << 20;

const GET: &str = "SELECT value, version FROM {s}.records
    WHERE part = $1 AND key = $2 AND (ends IS NULL OR ends > {s}.now_us()) AND {fits}";

/// `LIMIT` keeps the plan: one look in the index for each record. The small ones come first.
const GETS: &str = "SELECT w.place, CASE WHEN $3 >=
        sum(octet_length(r.value)) OVER (ORDER BY octet_length(r.value) ROWS UNBOUNDED PRECEDING)
        THEN r.value END, r.version
    FROM unnest($1, $2) WITH ORDINALITY AS w (part, key, place) CROSS JOIN LATERAL (
        SELECT r.value, r.version FROM {s}.records r
        WHERE r.part = w.part AND r.key = w.key AND (r.ends IS NULL OR r.ends > {s}.now_us()) LIMIT 1) AS r
    WHERE {fits}";

/// Returns the error of a record that no release has written.
pub(crate) fn damaged(row: &str) -> PortError {
    let what = "has no value, or no version above 0: replace or delete it";
    PortError::new(PortErrorKind::Corrupt, format!("postgres: the record {row:?} is damaged: it {what}"))
}

/// Reads records for the readers of one handle.
pub(crate) struct Getter {
    link: Arc<Link>,
    get: String,
    gets: String,
}

impl Wanted {
    pub(crate) fn new(key: Key<'_>) -> Self {
        Self { partition: key.partition.to_owned(), row: key.row.to_owned() }
    }
}

impl Getter {
    pub(crate) fn new(link: &Arc<Link>) -> Self {
        Self { link: link.clone(), get: link.sql(GET), gets: link.sql(GETS) }
    }

    /// Reads one record.
    pub(crate) async fn get(&self, partition: &str, row: &str) -> Result<Option<Record>, PortError> {
        let (partition, row_name, row) = (partition.as_bytes(), row, row.as_bytes());
        let params: [Param<'_>; 2] = [(&partition, Type::BYTEA), (&row, Type::BYTEA)];
        let rows = self.link.query(Effect::Read, &self.get, &params).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        self.record(row, self.link.column(row, 0)?, 1).ok_or_else(|| damaged(row_name)).map(Some)
    }

    /// Returns a record, or `None` if it is damaged.
    fn record(&self, row: &Row, value: Option<&[u8]>, version_at: usize) -> Option<Record> {
        let number = self.link.column::<Option<i64>>(row, version_at).ok()?.filter(|number| *number > 0)?;
        Some(Record::new(Bytes::copy_from_slice(value?), version(number)))
    }

    /// Reads several records, all that exist from one snapshot.
    async fn get_all(&self, wanted: &[Wanted]) -> Result<Vec<Found>, PortError> {
        let partitions: Vec<&[u8]> = wanted.iter().map(|wanted| wanted.partition.as_bytes()).collect();
        let rows: Vec<&[u8]> = wanted.iter().map(|wanted| wanted.row.as_bytes()).collect();
        let params: [Param<'_>; 3] =
            [(&partitions, Type::BYTEA_ARRAY), (&rows, Type::BYTEA_ARRAY), (&SHARED_BYTES, Type::INT8)];
        let rows = self.link.query(Effect::Read, &self.gets, &params).await?;
        let mut found: Vec<Found> = wanted.iter().map(|_| Found::Done(Ok(None))).collect();
        for row in &rows {
            let place = usize::try_from(self.link.column::<i64>(row, 0)?).unwrap_or_default();
            let Some(place) = place.checked_sub(1).filter(|place| *place < found.len()) else { continue };
            let value = self.link.column::<Option<&[u8]>>(row, 1)?;
            // Alone, a damaged one is an error, and a large one is not.
            found[place] = self.record(row, value, 2).map_or(Found::Large, |record| Found::Done(Ok(Some(record))));
        }
        Ok(found)
    }
}

impl SendBatch<Wanted, Found> for Arc<Getter> {
    fn send(&self, wanted: Vec<Wanted>) -> BoxFuture<'_, Vec<Found>> {
        Box::pin(async move {
            if let [wanted] = &wanted[..] {
                return vec![Found::Done(self.get(&wanted.partition, &wanted.row).await)];
            }
            match self.get_all(&wanted).await {
                Ok(found) => found,
                Err(error) => wanted.iter().map(|_| Found::Done(Err(error.clone()))).collect(),
            }
        })
    }

    fn weight(&self, _: &Wanted) -> usize {
        1
    }
}
