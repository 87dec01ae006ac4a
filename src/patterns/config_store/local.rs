//! The local row: what a process knows after a restart, and while the store is away.
use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::{
    Documents, RevisionInfo, documents,
    state::{Id, Known, Trial, Trials},
};
use crate::{
    port::ask,
    record::Unreadable,
    revisions::unreadable,
    store::{Key, PutOptions, Store, StoreError},
    sync::Mutex,
    time::Clock,
    wire::{In, Out},
};

/// Number of the stored form.
const FORM: u64 = 1;

/// The state of a process across its restarts, and the documents of its last good revision.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Kept {
    pub(super) trials: Trials,
    pub(super) good: Option<(RevisionInfo, Documents)>,
}

impl Kept {
    fn encode(&self) -> Bytes {
        let id = |out: &mut Out, id: Id| {
            out.number(id.number);
            out.number(id.owner);
        };
        let known = |out: &mut Out, known: Known| {
            id(out, known.id);
            out.number(known.digest);
        };
        let mut out = Out::of_form(FORM);
        out.option(self.trials.good, known);
        out.option(self.trials.trial, |out, trial| {
            known(out, trial.of);
            out.number(u64::from(trial.lives));
        });
        out.option(self.trials.quarantined, id);
        out.option(self.trials.vetoed, id);
        out.option(self.trials.proven, known);
        out.option(self.good.as_ref(), |out, (info, layers)| {
            out.number(info.number);
            // The digest of all documents is not that of the layers.
            out.number(info.digest);
            let layers_of = RevisionInfo { digest: layers.digest(), ..info.clone() };
            out.bytes(&documents::encode(&layers_of, layers));
        });
        out.into_bytes()
    }

    fn decode(bytes: Bytes) -> Result<Self, Unreadable> {
        In::open(bytes, FORM, Self::read)
    }

    fn read(input: &mut In) -> Option<Self> {
        let id = |input: &mut In| Some(Id { number: input.number()?, owner: input.number()? });
        let known = |input: &mut In| Some(Known { id: id(input)?, digest: input.number()? });
        let good = input.option(known)?;
        let trial = input.option(|input| {
            let (of, lives) = (known(input)?, u32::try_from(input.number()?).ok()?);
            Some(Trial { of, lives, is_counted: false })
        })?;
        let (quarantined, vetoed) = (input.option(id)?, input.option(id)?);
        let proven = input.option(known)?;
        let kept = input.option(|input| {
            let (number, digest) = (input.number()?, input.number()?);
            let (info, layers) = documents::decode(number, input.bytes()?).ok()?;
            Some((RevisionInfo { digest, ..info }, layers))
        })?;
        Some(Self { trials: Trials { good, proven, trial, quarantined, vetoed }, good: kept })
    }
}

/// The row in the local store.
pub(super) struct LocalRow {
    pub(super) store: Arc<dyn Store>,
    pub(super) clock: Clock,
    pub(super) limit: Duration,
    pub(super) partition: String,
    pub(super) row: String,
    /// Held while the row is written. A write that timed out may still land after the next one.
    pub(super) writing: tokio::sync::Mutex<()>,
}

impl LocalRow {
    pub(super) async fn read(&self) -> Result<Kept, StoreError> {
        let read = ask(&self.clock, self.limit, self.store.get(self.key())).await;
        let found = read.map_err(|error| error.or_timed_out("the local store did not answer in time"))?;
        let Some(record) = found else { return Ok(Kept::default()) };
        Kept::decode(record.value).map_err(|why| unreadable("the local row of the configuration", why))
    }

    /// Writes the state as it is when the write begins.
    pub(super) async fn save(&self, kept: &Mutex<Kept>) -> Result<(), StoreError> {
        let _writing = self.writing.lock().await;
        let bytes = kept.lock().encode();
        let put = self.store.put(self.key(), bytes, PutOptions::new());
        let written = ask(&self.clock, self.limit, put).await;
        written.map(|_| ()).map_err(|error| error.or_timed_out("the local store did not answer in time"))
    }

    fn key(&self) -> Key<'_> {
        Key::new(&self.partition, &self.row)
    }
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use super::*;
    use crate::time::Timestamp;

    #[test]
    fn what_a_process_keeps_is_read_as_it_was_written_and_damage_is_noticed() {
        let known = |number| Known { id: Id { number, owner: number * 5 }, digest: number * 7 };
        let trials = Trials {
            good: Some(known(3)),
            proven: Some(known(2)),
            trial: Some(Trial { of: known(5), lives: 2, is_counted: false }),
            quarantined: Some(known(4).id),
            vetoed: Some(known(6).id),
        };
        let layers = Documents::new([("billing".to_owned(), Bytes::from_static(b"x = 1"))].into());
        let info = RevisionInfo {
            number: 3,
            digest: 99,
            author: "ada".to_owned(),
            reason: "promo".to_owned(),
            at: Timestamp::from_millis(5),
            source: Some(1),
        };
        for kept in [Kept::default(), Kept { trials, good: Some((info, layers)) }] {
            let bytes = kept.encode();
            assert_eq!(Kept::decode(bytes.clone()), Ok(kept));
            for end in 0..bytes.len() {
                assert_eq!(Kept::decode(bytes.slice(..end)), Err(Unreadable::Foreign));
            }
            let mut newer = bytes.to_vec();
            newer[0] += 1;
            assert_eq!(Kept::decode(newer.into()), Err(Unreadable::TooNew));
        }
    }
}
