//! Running a saga on behalf of a request, for a component that hosts sagas, such as a scheduler.
use std::{convert::Infallible, future::pending, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::sync::watch;

use super::{
    Saga, SagaError, SagaEvent as Event,
    core::{LOOKS, SagaCore, Takes},
    execution::{Driven, Leave},
    records::Started,
    recover::AllSeen,
    state::{Origin, Progress},
};
use crate::{
    codec::CodecError,
    hash::stable_hash,
    port::ErrorClass,
    race::{First, race},
    store::Write,
    time::Instant,
};

/// One delivery of a request for a saga.
pub(crate) struct Turn<'a> {
    pub(crate) id: &'a str,
    /// Present if the request may start the saga.
    pub(crate) start: Option<Start>,
    /// Number of the request, by which its next delivery recognises its own execution.
    pub(crate) request: u64,
    /// The epoch at which a supervisor found the saga without an executor.
    pub(crate) epoch: Option<u64>,
    /// The saga is cancelled for this reason.
    pub(crate) cancel: Option<&'a str>,
    /// The saga is cancelled for this reason at this time.
    pub(crate) deadline: Option<(Instant, &'a str)>,
    pub(crate) stopped: watch::Receiver<bool>,
}

/// The parts of a new saga.
pub(crate) struct Start {
    /// The encoded initial state.
    pub(crate) state: Bytes,
    /// The initial rows.
    pub(crate) rows: Vec<Write>,
    pub(crate) origin: Origin,
}

/// The end of a turn.
#[derive(Debug)]
pub(crate) enum Turned {
    /// The saga ended, or is stuck.
    Ended,
    /// The saga goes on after this delay.
    Deferred(Duration),
    /// Another execution runs the saga.
    Busy,
    /// There is no such saga, and the request does not start it.
    Absent,
}

impl<T: Send + Sync + 'static> Saga<T> {
    pub(crate) fn core(&self) -> &Arc<SagaCore> {
        &self.core
    }

    pub(crate) fn encode(&self, state: &T) -> Result<Vec<u8>, CodecError> {
        self.codec.encode(state)
    }

    pub(crate) fn decode(&self, state: &[u8]) -> Result<T, CodecError> {
        self.codec.decode(state)
    }
}

impl SagaCore {
    pub(crate) fn scan_interval(&self) -> Duration {
        self.config.load().scan_interval
    }

    /// Returns the time within which a step ends and is recorded, if the store answers.
    pub(crate) fn longest_step(&self) -> Duration {
        let config = self.config.load();
        config.step_timeout.saturating_add(config.call_timeout.saturating_mul(2))
    }

    /// Returns `true` if there is a record with this id, also one that cannot be read.
    pub(crate) async fn exists(&self, id: &str) -> Result<bool, SagaError> {
        self.check_id(id)?;
        Ok(self.read(id).await?.is_some())
    }

    /// Ends the delay of a saga, or skips its next one. Returns the request that started it.
    pub(crate) async fn wake(&self, id: &str) -> Result<Origin, SagaError> {
        self.check_id(id)?;
        loop {
            let stored = self.read_known(id).await?;
            let mut next = stored.progress.clone();
            next.wake();
            if next == stored.progress || self.signal(id, &stored, &next).await? {
                self.signal_local(id);
                return Ok(next.hosted.origin);
            }
        }
    }

    /// Starts or continues the saga of a request, until it ends or waits for long.
    pub(crate) async fn turn(self: &Arc<Self>, turn: Turn<'_>) -> Result<Turned, SagaError> {
        self.check_id(turn.id)?;
        let leave = Leave { when_deferred: true, when_stopped: Some(turn.stopped.clone()) };
        loop {
            let execution = match self.read(turn.id).await? {
                Some(Err(reason)) => return Err(self.incompatible(turn.id, reason)),
                None => {
                    let Some(Start { state, rows, origin }) = &turn.start else { return Ok(Turned::Absent) };
                    let Some(local) = self.enter(turn.id) else { return Ok(Turned::Busy) };
                    let (input, owner, limits) = (stable_hash(state), local.owner, self.limits());
                    let mut progress = match turn.cancel {
                        None => Progress::start(&self.plan, input, owner, state.clone(), limits),
                        Some(why) => Progress::cancelled(&self.plan, input, owner, state.clone(), why, limits),
                    };
                    progress.hosted.request = turn.request;
                    progress.hosted.origin = origin.clone();
                    let Started::Now(execution) = self.start(progress, rows, local).await? else { continue };
                    self.event(|| Event::Started { id: turn.id.to_owned() });
                    execution
                }
                Some(Ok(stored)) => {
                    if let Some(Start { state, .. }) = &turn.start
                        && stable_hash(state) != stored.progress.input
                    {
                        return Err(SagaError::InputMismatch);
                    }
                    if !stored.progress.is_open() {
                        return Ok(Turned::Ended);
                    }
                    let Progress { owner, epoch, hosted, .. } = &stored.progress;
                    // The execution of an earlier delivery of this request is over, or has lost its lease.
                    let is_own = hosted.request == turn.request || turn.epoch == Some(*epoch);
                    if owner.is_some() && !is_own {
                        return Ok(Turned::Busy);
                    }
                    let Some(local) = self.enter(turn.id) else { return Ok(Turned::Busy) };
                    let cancel = |progress: &mut Progress| {
                        if let Some(reason) = turn.cancel {
                            // Past the pivot it goes on.
                            progress.cancel(reason);
                        }
                        Ok(())
                    };
                    let Some(execution) = self.take(stored, local, turn.request, cancel).await? else { continue };
                    execution
                }
            };
            let cancel = async {
                if let Some((at, reason)) = turn.deadline {
                    self.clock.sleep_until(at).await;
                    // The attempt under way may outlast the failure of the store, so that no other
                    // delivery finds the deadline passed.
                    while let Err(SagaError::Store(error)) = self.request_cancel(turn.id, reason).await
                        && error.class() != ErrorClass::Permanent
                    {
                        self.clock.sleep(LOOKS.1).await;
                    }
                }
                pending::<Infallible>().await
            };
            let driven = match race(execution.drive(&leave), cancel).await {
                First::One(driven) => driven,
                First::Other(never) => match never {},
            };
            return match driven {
                Ok(Driven::Ended(_)) => Ok(Turned::Ended),
                Ok(Driven::Released(delay)) => Ok(Turned::Deferred(delay)),
                Err(SagaError::Superseded) => Ok(Turned::Busy),
                Err(error) => Err(error),
            };
        }
    }
}

/// An open saga without an executor.
pub(crate) struct Silent {
    pub(crate) id: String,
    /// Number of times that it was found so, this one included.
    pub(crate) failures: u32,
    pub(crate) epoch: u64,
    pub(crate) origin: Origin,
    /// The supervisor has given it up: it is stuck.
    pub(crate) is_stranded: bool,
}

impl SagaCore {
    /// Finds the sagas that had no executor for `takeover_after`, and counts each, up to
    /// `limit` times. A saga that was found more than `most` times is made stuck.
    pub(crate) async fn silent(&self, seen: &mut AllSeen, limit: u32, most: u32) -> Result<Vec<Silent>, SagaError> {
        let mut silent = Vec::new();
        for (id, stored) in self.stalled(seen, Takes::Silent).await? {
            let mut next = stored.progress.clone();
            let failures = next.hosted.failures.saturating_add(1);
            if failures > limit {
                continue;
            }
            next.hosted.failures = failures;
            let is_stranded = failures > most;
            if is_stranded {
                next.strand(&format!("no process carried the saga on, {failures} times"));
            }
            // Another supervisor, or an execution, was faster.
            if self.signal(&id, &stored, &next).await? {
                silent.push(Silent { id, failures, epoch: next.epoch, origin: next.hosted.origin, is_stranded });
            }
        }
        Ok(silent)
    }
}
