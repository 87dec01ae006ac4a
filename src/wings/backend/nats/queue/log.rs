//! The log of a queue: calls are written to it together, and wait until they are read back.
use std::{
    collections::{HashMap, VecDeque},
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
    port::{PortError, PortErrorKind, within},
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
    waiting: Mutex<Waiting>,
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

/// Calls that wait to be written together.
#[derive(Default)]
struct Waiting {
    calls: VecDeque<WaitingCall>,
    is_writing: bool,
}

struct WaitingCall {
    frame: Bytes,
    /// Number of messages that the call sends.
    messages: usize,
    written: oneshot::Sender<Result<Numbers, PortError>>,
}

/// Time after which a written call that was not read back makes the reader open another consumer.
const UNHEARD: Duration = Duration::from_secs(1);

impl Log {
    pub(super) fn new(link: Link, stream: Stream, subject: String) -> Arc<Self> {
        let origin = link.base().entropy.next_u64();
        let largest = link.client().max_payload().saturating_sub(FRAME);
        let (changed, stopped) = (watch::Sender::new(()), watch::Sender::new(false));
        Arc::new(Self {
            link,
            stream,
            subject,
            origin,
            last: AtomicU64::new(0),
            largest,
            waiting: Mutex::default(),
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
        let written = self.write(frame, sent.map_or(0, Vec::len));
        let answered = async {
            let mut outcome = outcome;
            let written = async {
                // A writer that is gone has not said what became of the call.
                let lost = || self.link.failure(PortErrorKind::Unavailable, "the writer ended").outcome_unknown();
                written.await.unwrap_or_else(|_| Err(lost()))
            };
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

    /// Adds a call to those that wait to be written.
    fn write(self: &Arc<Self>, frame: Bytes, messages: usize) -> oneshot::Receiver<Result<Numbers, PortError>> {
        let (answer, written) = oneshot::channel();
        let begins = {
            let mut waiting = self.waiting.lock();
            waiting.calls.push_back(WaitingCall { frame, messages, written: answer });
            !std::mem::replace(&mut waiting.is_writing, true)
        };
        if begins {
            let task = Task::new(self, |log| {
                let calls = {
                    let mut waiting = log.waiting.lock();
                    waiting.is_writing = false;
                    std::mem::take(&mut waiting.calls)
                };
                drop(calls);
            });
            Spawner::Tokio.spawn(async move {
                task.log.write_all().await;
                task.end();
            });
        }
        written
    }

    /// Writes the calls that wait, all that fit in one entry, until none waits.
    async fn write_all(&self) {
        loop {
            let calls = {
                let mut waiting = self.waiting.lock();
                // Nobody waits for the outcome of a call that was dropped.
                waiting.calls.retain(|call| !call.written.is_closed());
                let mut size = 0;
                let fits = waiting.calls.iter().take_while(|call| {
                    size += call.frame.len();
                    size <= self.largest
                });
                let count = fits.count();
                if count == 0 {
                    waiting.is_writing = false;
                    return;
                }
                waiting.calls.drain(..count).collect::<Vec<_>>()
            };
            let entry = entry::calls(self.origin, calls.iter().map(|call| &call.frame));
            let stored = match self.link.store(self.subject.clone(), None, entry).await {
                Ok(Ok(number)) => Ok(number),
                Ok(Err(error)) => Err(self.link.rejected("the queue cannot be written", &error)),
                Err(error) => Err(error),
            };
            let mut numbers = stored.as_ref().ok().map(|number| Numbers::of_entry(*number));
            for call in calls {
                let answer = match (&stored, &mut numbers) {
                    (Ok(_), Some(numbers)) => Ok(numbers.skip(call.messages)),
                    (Err(error), _) => Err(error.clone()),
                    (Ok(number), None) => Ok(Numbers::of_entry(*number)),
                };
                // The caller may be gone.
                let _ = call.written.send(answer);
            }
        }
    }
}

/// Work of a task, which runs something at its end: also if its runtime ends first.
pub(super) struct Task {
    pub(super) log: Arc<Log>,
    at_end: Option<fn(&Log)>,
}

impl Task {
    pub(super) fn new(log: &Arc<Log>, at_end: fn(&Log)) -> Self {
        Self { log: log.clone(), at_end: Some(at_end) }
    }

    /// Ends without the function.
    fn end(mut self) {
        self.at_end = None;
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(at_end) = self.at_end {
            at_end(&self.log);
        }
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
