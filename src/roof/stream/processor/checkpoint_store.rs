//! The checkpoint of a partition in the store: claiming it, and writing it.
use std::time::Duration;

use super::{
    StreamCall, StreamProcessorEvent as Event, StreamStart,
    checkpoint::{Checkpoint, Suspect},
    component::ProcessorCore,
    config::OutOfRange,
    finished::Finished,
};
use crate::{
    backoff::{Backoff, BackoffConfig},
    port::{AskError, Failure, FencingToken, PortError, PortErrorKind, ask},
    store::{Key, Precondition, PutOptions, StoreError, Version},
};

/// Number of claims in a row without a finished event, after which the owner is careful.
const CARELESS_CLAIMS: u32 = 2;

/// Prefix of the rows of checkpoints.
pub(super) const PREFIX: &str = "p/";

pub(super) fn row(partition: u16) -> String {
    format!("{PREFIX}{partition:04}")
}

/// A partition that this member has claimed.
pub(super) struct Claimed {
    pub(super) checkpoint: Checkpoint,
    /// Version of the record.
    pub(super) version: Version,
    /// Position that the next event of the topic will get.
    pub(super) end: u64,
}

/// The reasons for which a partition is not processed.
pub(super) enum Unclaimed {
    /// A later owner has claimed it.
    Superseded,
    /// It needs an operator, for this reason.
    Halted(String),
    /// The store refuses the request for good.
    Failed(PortError),
}

/// The fate of a checkpoint.
pub(super) enum Written {
    Applied(Version),
    /// It was not applied, or that is unknown. The version is the one to require the next time.
    Failed(Option<Version>),
    /// A later owner has claimed the partition.
    Superseded,
}

impl ProcessorCore {
    /// Reads the checkpoint of a partition and rewrites it under this token. From then on no
    /// checkpoint of an earlier owner is accepted: its version has changed. One of an owner that
    /// claims late, with an earlier token, is refused by the fence.
    pub(super) async fn claim(&self, partition: u16, token: FencingToken) -> Result<Claimed, Unclaimed> {
        let row = row(partition);
        let key = Key::new(&self.partition, &row);
        let limit = self.call_timeout();
        let (mut delays, mut skipped) = (self.delays(), None);
        loop {
            let found = match ask(&self.clock, limit, self.store.get(key)).await {
                Ok(found) => found,
                Err(error) => {
                    self.pause(error, StreamCall::Checkpoint, partition, &mut delays).await?;
                    continue;
                }
            };
            let end = match ask(&self.clock, limit, self.topic.bounds(partition)).await {
                Ok(bounds) => bounds,
                Err(error) => {
                    self.pause(error, StreamCall::Read, partition, &mut delays).await?;
                    continue;
                }
            };
            let (first, next) = (end.first, end.next);
            let (mut checkpoint, when) = match &found {
                Some(record) => {
                    let read = Checkpoint::decode(&record.value).map_err(|why| Unclaimed::Halted(why.to_owned()))?;
                    (read, Precondition::Version(record.version))
                }
                None => {
                    let start = self.config.load().start;
                    let start = match start {
                        StreamStart::Earliest => first,
                        StreamStart::Latest => next,
                    };
                    let finished = Finished::up_to(start.saturating_sub(1));
                    (Checkpoint { topic: self.topic_hash, finished, ..Checkpoint::default() }, Precondition::Absent)
                }
            };
            // A record that was written with its reply lost has been moved before.
            skipped = self.fit(&mut checkpoint, first, next)?.or(skipped);
            checkpoint.begin(token, next, self.config.load().max_ahead);
            let options = PutOptions::new().when(when).fence(token);
            match ask(&self.clock, limit, self.store.put(key, checkpoint.encode(), options)).await {
                Ok(version) => {
                    if let Some((from, to, lost)) = skipped {
                        self.event(|| Event::Skipped { partition, from, to, lost });
                    }
                    return Ok(Claimed { checkpoint, version, end: next });
                }
                // An earlier owner has written meanwhile, or this was written and the reply was lost: then
                // it is read and written again.
                Err(AskError::Failed(StoreError::Conflict { .. })) => {}
                Err(AskError::Failed(StoreError::Fenced { .. })) => return Err(Unclaimed::Superseded),
                Err(error) => self.pause(error, StreamCall::Checkpoint, partition, &mut delays).await?,
            }
        }
    }

    /// Moves a checkpoint into the range of the topic, or halts.
    fn fit(&self, checkpoint: &mut Checkpoint, first: u64, next: u64) -> Result<Option<(u64, u64, u64)>, Unclaimed> {
        let from = checkpoint.finished.watermark() + 1;
        let (is_other, is_beyond) = (checkpoint.topic != self.topic_hash, from > next);
        if !is_other && !is_beyond && from >= first {
            return Ok(None);
        }
        let reason = match () {
            () if is_other => "the checkpoint is of another topic with this name".to_owned(),
            () if is_beyond => format!("the next event is {from}, and the topic ends before {next}"),
            () => format!("the next event is {from}, and the topic begins at {first}"),
        };
        if self.config.load().on_out_of_range == OutOfRange::Halt {
            return Err(Unclaimed::Halted(reason));
        }
        let lost = if is_other || is_beyond {
            checkpoint.finished = Finished::up_to(first.saturating_sub(1));
            (checkpoint.careful_until, checkpoint.suspect) = (0, None);
            0
        } else {
            checkpoint.finished.skip_to(first - 1)
        };
        checkpoint.topic = self.topic_hash;
        checkpoint.lost = checkpoint.lost.saturating_add(lost);
        Ok(Some((from, first, lost)))
    }

    /// Replaces the checkpoint of a partition, as the owner with its epoch.
    pub(super) async fn write(&self, partition: u16, checkpoint: Checkpoint, version: Version) -> Written {
        let row = row(partition);
        let key = Key::new(&self.partition, &row);
        let limit = self.call_timeout();
        let options = PutOptions::new().when(Precondition::Version(version));
        let options = options.fence(FencingToken::new(checkpoint.epoch));
        let error = match ask(&self.clock, limit, self.store.put(key, checkpoint.encode(), options)).await {
            Ok(version) => return Written::Applied(version),
            Err(AskError::Failed(StoreError::Fenced { .. })) => return Written::Superseded,
            Err(AskError::Failed(StoreError::Conflict { .. })) => {
                match ask(&self.clock, limit, self.store.get(key)).await {
                    // A write of this owner whose reply was lost.
                    Ok(Some(record)) => match Checkpoint::decode(&record.value) {
                        Ok(stored) if stored.epoch == checkpoint.epoch && stored.writes == checkpoint.writes => {
                            return Written::Applied(record.version);
                        }
                        Ok(stored) if stored.epoch == checkpoint.epoch => return Written::Failed(Some(record.version)),
                        _ => return Written::Superseded,
                    },
                    Ok(None) => return Written::Superseded,
                    Err(error) => error,
                }
            }
            Err(error) => error,
        };
        self.failed(StreamCall::Checkpoint, Some(partition), error.kind());
        Written::Failed(None)
    }

    /// Reports a failed request, and waits before the next try.
    async fn pause<E: Failure + From<PortError>>(
        &self,
        error: AskError<E>,
        call: StreamCall,
        partition: u16,
        delays: &mut Backoff,
    ) -> Result<(), Unclaimed> {
        self.failed(call, Some(partition), error.kind());
        let error = error.or_timed_out("no answer in time");
        if let Some(backend) = error.backend()
            && backend.class() == crate::port::ErrorClass::Permanent
        {
            let reason = backend.to_string();
            return Err(match backend.kind() {
                PortErrorKind::Corrupt | PortErrorKind::TooNew => Unclaimed::Halted(reason),
                _ => Unclaimed::Failed(backend.clone()),
            });
        }
        self.clock.sleep(delays.next().unwrap_or_default()).await;
        Ok(())
    }

    /// Returns delays between repeated requests.
    pub(super) fn delays(&self) -> Backoff {
        let config = BackoffConfig::default().between(Duration::from_millis(100), Duration::from_secs(5));
        Backoff::checked(config, &self.entropy)
    }
}

impl Checkpoint {
    /// Begins the term of an owner, who finds the events below `next`.
    pub(super) fn begin(&mut self, token: FencingToken, next: u64, max_ahead: u32) {
        // A claim whose reply was lost is not counted twice.
        let is_again = self.epoch == token.as_u64();
        (self.epoch, self.writes) = (token.as_u64(), 0);
        if is_again {
            return;
        }
        let watermark = self.finished.watermark();
        let has_work = next > watermark + 1 + self.finished.count_above();
        if self.claims >= CARELESS_CLAIMS && has_work {
            self.careful_until = self.careful_until.max(watermark.saturating_add(max_ahead.into()));
        }
        if has_work {
            self.claims = self.claims.saturating_add(1);
        }
        if let Some(suspect) = &mut self.suspect
            && suspect.is_running
        {
            // Its owner has not handed over: it died while the event ran.
            let crashes = suspect.crashes.saturating_add(1);
            *suspect = Suspect { crashes, is_running: false, ..*suspect };
        }
    }
}
