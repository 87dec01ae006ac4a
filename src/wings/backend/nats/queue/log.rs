//! The log of a queue: calls are written to it together, and wait until they are read back.
use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::sync::{Notify, oneshot, watch};

use super::{
    super::{
        link::{Base, Effect, Link},
        setup::Stream,
    },
    entry::{self, Call, FRAME, Part, Unreadable},
    machine::{Numbers, Outcome},
    replica::{Broken, Replica},
};
use crate::{
    gather::{Gather, SendBatch},
    port::{BoxFuture, PortError, PortErrorKind, within},
    race::{First, race},
    spawn::Spawner,
    sync::Mutex,
};

/// The log of a queue, and the handle's copy of the state.
pub(super) struct Log {
    pub(super) link: Link,
    pub(super) stream: Stream,
    pub(super) subject: String,
    /// Number that distinguishes the calls of this handle from those of others.
    pub(super) origin: u64,
    /// Number of the last call.
    last: AtomicU64,
    /// Largest size of an entry.
    pub(super) largest: usize,
    writes: Gather<Frame, Result<Numbers, PortError>>,
    /// Callers that wait for an outcome, by the number of their call.
    pub(super) callers: Mutex<HashMap<u64, oneshot::Sender<Outcome>>>,
    pub(super) replica: Mutex<Replica>,
    /// Sent after each change of the copy.
    pub(super) changed: watch::Sender<()>,
    /// Number of messages that receives of this handle are about to take, by part.
    pub(super) wanted: [AtomicUsize; 2],
    pub(super) is_followed: AtomicBool,
    pub(super) is_checkpointing: AtomicBool,
    /// Ends the reader's consumer: it then opens another one.
    pub(super) reopen: Notify,
    pub(super) stopped: watch::Sender<bool>,
}

/// A call to be written: its frame, and the number of messages that it sends.
type Frame = (Bytes, usize);

/// Writes calls together, as many as fit in an entry.
struct Writer {
    link: Link,
    subject: String,
    origin: u64,
}

impl SendBatch<Frame, Result<Numbers, PortError>> for Writer {
    fn send(&self, calls: Vec<Frame>) -> BoxFuture<'_, Vec<Result<Numbers, PortError>>> {
        Box::pin(async move {
            let entry = entry::calls(self.origin, calls.iter().map(|(frame, _)| frame));
            let stored = match self.link.store(self.subject.clone(), None, entry).await {
                Ok(Ok(number)) => Ok(Numbers::of_entry(number)),
                Ok(Err(error)) => Err(self.link.rejected("the queue cannot be written", &error)),
                Err(error) => Err(error),
            };
            match stored {
                Ok(mut numbers) => calls.iter().map(|(_, messages)| Ok(numbers.skip(*messages))).collect(),
                Err(error) => calls.iter().map(|_| Err(error.clone())).collect(),
            }
        })
    }

    fn weight(&self, (frame, _): &Frame) -> usize {
        frame.len()
    }
}

/// Time after which a written call that was not read back makes the reader open another consumer.
const UNHEARD: Duration = Duration::from_secs(1);

impl Log {
    pub(super) fn new(link: Link, stream: Stream, subject: String) -> Arc<Self> {
        let origin = link.base().entropy.next_u64();
        let largest = link.client().max_payload().saturating_sub(FRAME);
        let (changed, stopped) = (watch::Sender::new(()), watch::Sender::new(false));
        let writer = Writer { link: link.clone(), subject: subject.clone(), origin };
        Arc::new(Self {
            link,
            stream,
            subject,
            origin,
            last: AtomicU64::new(0),
            largest,
            writes: Gather::in_order(largest, Spawner::Tokio, writer),
            callers: Mutex::default(),
            replica: Mutex::new(Replica::new()),
            changed,
            wanted: [AtomicUsize::new(0), AtomicUsize::new(0)],
            is_followed: AtomicBool::new(false),
            is_checkpointing: AtomicBool::new(false),
            reopen: Notify::new(),
            stopped,
        })
    }

    /// Ends the reader.
    pub(super) fn stop(&self) {
        self.stopped.send_replace(true);
    }

    /// Returns the largest size of a call, in bytes.
    pub(super) const fn largest(&self) -> usize {
        self.largest
    }

    /// Returns the number of messages that are visible now, as far as the copy can tell, and the
    /// time until another one returns. `None` if there is no copy yet.
    pub(super) fn outlook(&self, part: Part) -> Option<(usize, Option<Duration>)> {
        self.replica.lock().outlook(part, self.link.base().clock.now())
    }

    /// Writes a call, and returns its outcome.
    pub(super) async fn call(self: &Arc<Self>, part: Part, call: &Call) -> Result<Outcome, PortError> {
        let number = self.last.fetch_add(1, Ordering::Relaxed);
        let frame = entry::frame(number, part, &call.encode()?);
        if frame.len() > self.largest {
            let rule = format_args!("must be at most {} bytes together, are {}", self.largest, frame.len());
            return Err(PortError::invalid("messages", rule));
        }
        self.check()?;
        // The ids of messages without de-duplication follow from the place of the entry.
        let sent = match call {
            Call::Send { messages, .. } => Some(messages),
            _ => None,
        };
        let is_told = sent.is_some_and(|messages| messages.iter().all(|message| message.deduplication_id.is_none()));
        let (answer, outcome) = oneshot::channel();
        let _caller = Caller { log: self, number };
        if !is_told {
            self.complete().await?;
            self.callers.lock().insert(number, answer);
        }
        let written = self.writes.send((frame, sent.map_or(0, Vec::len)));
        let answered = async {
            let mut outcome = outcome;
            let written = async { written.await? };
            if let (true, Some(messages)) = (is_told, sent) {
                let mut numbers = written.await?;
                return Ok(Outcome::Sent(messages.iter().map(|_| numbers.next_id()).collect()));
            }
            match race(&mut outcome, written).await {
                First::One(outcome) => outcome.map_err(|_| self.unheard()),
                First::Other(Err(error)) => Err(error),
                First::Other(Ok(_)) => self.hear(outcome).await,
            }
        };
        let Base { clock, config, .. } = &**self.link.base();
        within(clock, config.request_timeout, answered).await.unwrap_or_else(|| Err(self.unheard()))
    }

    /// Waits until the copy has all messages of the log. A call that is written earlier would be
    /// answered too late, and a `receive` would hide messages that no caller gets.
    async fn complete(self: &Arc<Self>) -> Result<(), PortError> {
        self.follow();
        if self.replica.lock().is_complete() {
            return Ok(());
        }
        let mut changed = self.changed.subscribe();
        let is_ready = |replica: &Replica| replica.is_complete() || replica.broken().is_some();
        let ready = changed.wait_for(|()| is_ready(&self.replica.lock()));
        match self.link.supervise(Effect::Once, ready).await {
            Ok(_) => self.check(),
            Err(error) if error.kind() == PortErrorKind::TimedOut => {
                let left = self.replica.lock().left();
                let message = format_args!("the log of the queue is being read, {left} entries are left");
                Err(self.link.failure(PortErrorKind::TimedOut, message))
            }
            Err(error) => Err(error),
        }
    }

    /// Waits until a written call is read back.
    async fn hear(&self, mut outcome: oneshot::Receiver<Outcome>) -> Result<Outcome, PortError> {
        let clock = &self.link.base().clock;
        let heard = match within(clock, UNHEARD, &mut outcome).await {
            Some(heard) => heard,
            None => {
                // A copy that is behind, and reads, is not helped by another consumer.
                if self.replica.lock().silence(clock.now()) >= UNHEARD {
                    self.reopen.notify_one();
                }
                outcome.await
            }
        };
        heard.map_err(|_| self.unheard())
    }

    fn unheard(&self) -> PortError {
        let limit = humantime::format_duration(self.link.base().config.request_timeout);
        let late = || self.link.failure(PortErrorKind::TimedOut, format_args!("no outcome of the call within {limit}"));
        self.check().err().unwrap_or_else(late).outcome_unknown()
    }

    /// Refuses calls if the log cannot be applied.
    fn check(&self) -> Result<(), PortError> {
        let Some(broken) = self.replica.lock().broken() else { return Ok(()) };
        let (kind, message) = match broken {
            Broken::Unreadable(Unreadable::TooNew(form)) => {
                (PortErrorKind::TooNew, format!("has entries of form {form}: use the newer release"))
            }
            Broken::Unreadable(_) => (PortErrorKind::Corrupt, "has a damaged entry".to_owned()),
            Broken::Incomplete => {
                (PortErrorKind::Corrupt, "has lost messages: were some deleted? purge it to begin anew".to_owned())
            }
            Broken::Deleted => (PortErrorKind::Corrupt, "was deleted: connect anew".to_owned()),
        };
        Err(self.link.failure(kind, format_args!("the stream `{}` {message}", self.stream.name)))
    }
}

/// Work of a task, which runs something at its end: also if its runtime ends first.
pub(super) struct Task {
    pub(super) log: Arc<Log>,
    at_end: fn(&Log),
}

impl Task {
    pub(super) fn new(log: &Arc<Log>, at_end: fn(&Log)) -> Self {
        Self { log: log.clone(), at_end }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        (self.at_end)(&self.log);
    }
}

/// Forgets a call when its caller is gone.
struct Caller<'a> {
    log: &'a Log,
    number: u64,
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        self.log.callers.lock().remove(&self.number);
    }
}
