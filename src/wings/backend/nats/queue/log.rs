//! The log of a queue: calls are written to it, and the calls of all handles are read from it.
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
        api::Purge,
        link::{Effect, Link},
        reader::{Range, Reader},
        setup,
    },
    entry::{self, Call, FRAME, Part, Unreadable},
    machine::{Numbers, Outcome},
    replica::{Applied, Broken, Replica},
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
    stream: String,
    subject: String,
    /// Number that distinguishes the calls of this handle from those of others.
    origin: u64,
    /// Number of the last call.
    last: AtomicU64,
    /// Largest size of an entry.
    largest: usize,
    waiting: Mutex<Waiting>,
    /// Callers that wait for an outcome, by the number of their call.
    callers: Mutex<HashMap<u64, oneshot::Sender<Outcome>>>,
    replica: Mutex<Replica>,
    /// Sent after each change of the copy.
    pub(super) changed: watch::Sender<()>,
    /// Number of messages that receives of this handle are about to take, by part.
    pub(super) wanted: [AtomicUsize; 2],
    is_followed: AtomicBool,
    /// Ends the reader, which then opens another consumer.
    is_checkpointing: AtomicBool,
    reopen: Notify,
    stopped: watch::Sender<bool>,
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
/// First and longest pause between attempts to read the log.
const PAUSE: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(2)];
/// Largest part of a checkpoint.
const PART: usize = 512 << 10;

impl Log {
    pub(super) fn new(link: Link, stream: String, subject: String) -> Arc<Self> {
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
        let frame = entry::frame(number, part, &call.encode());
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
            self.follow();
            self.callers.lock().insert(number, answer);
        }
        let written = self.write(frame, sent.map_or(0, Vec::len));
        let mut outcome = outcome;
        let written = async {
            // A writer that is gone has not said what became of the call.
            let lost = || self.link.failure(PortErrorKind::Unavailable, "the writer ended").outcome_unknown();
            written.await.unwrap_or_else(|_| Err(lost()))
        };
        let mut numbers = if is_told {
            written.await?
        } else {
            match race(&mut outcome, written).await {
                First::One(Ok(outcome)) => return Ok(outcome),
                First::One(Err(_)) => return Err(self.unheard()),
                First::Other(written) => written?,
            }
        };
        if let (true, Some(messages)) = (is_told, sent) {
            return Ok(Outcome::Sent(messages.iter().map(|_| numbers.next_id()).collect()));
        }
        self.hear(outcome).await
    }

    /// Waits until a written call is read back.
    async fn hear(&self, mut outcome: oneshot::Receiver<Outcome>) -> Result<Outcome, PortError> {
        let (clock, limit) = (&self.link.base().clock, self.link.base().config.request_timeout);
        let first = within(clock, UNHEARD.min(limit), &mut outcome).await;
        let heard = match first {
            Some(heard) => Some(heard),
            None => {
                let is_silent = self.replica.lock().silence(clock.now()) >= UNHEARD;
                // A copy that is behind, and reads, is not helped by another consumer.
                if is_silent {
                    self.reopen.notify_one();
                }
                within(clock, limit, outcome).await
            }
        };
        match heard {
            Some(Ok(outcome)) => Ok(outcome),
            _ => Err(self.unheard()),
        }
    }

    fn unheard(&self) -> PortError {
        let error = self.check().err();
        let error = error.unwrap_or_else(|| {
            self.link.failure(PortErrorKind::TimedOut, "the call was written, and its outcome was not read in time")
        });
        error.outcome_unknown()
    }

    /// Refuses calls if the log cannot be applied.
    fn check(&self) -> Result<(), PortError> {
        let Some(broken) = self.replica.lock().broken() else { return Ok(()) };
        let (kind, message) = match broken {
            Broken::Unreadable(Unreadable::TooNew(form)) => {
                (PortErrorKind::TooNew, format!("has entries of form {form}: use the newer release"))
            }
            Broken::Unreadable(Unreadable::Damaged) => (PortErrorKind::Corrupt, "has a damaged entry".to_owned()),
            Broken::Incomplete => (PortErrorKind::Corrupt, "has lost its first messages: was it purged?".to_owned()),
        };
        Err(self.link.failure(kind, format_args!("the stream `{}` {message}", self.stream)))
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
            Spawner::Tokio.spawn(self.clone().write_all());
        }
        written
    }

    /// Writes the calls that wait, all that fit in one entry, until none waits.
    async fn write_all(self: Arc<Self>) {
        loop {
            let calls = {
                let mut waiting = self.waiting.lock();
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

    /// Starts the reader, unless it runs.
    pub(super) fn follow(self: &Arc<Self>) {
        if !self.is_followed.swap(true, Ordering::AcqRel) {
            Spawner::Tokio.spawn(self.clone().read_all());
        }
    }

    /// Reads the log until the queue is dropped.
    async fn read_all(self: Arc<Self>) {
        let mut stopped = self.stopped.subscribe();
        let read = async {
            let mut pause = PAUSE[0];
            loop {
                // Another attempt follows, also after an error.
                pause = if self.read().await.is_ok() { PAUSE[0] } else { (pause * 2).min(PAUSE[1]) };
                self.link.base().clock.sleep(pause).await;
            }
        };
        race(read, stopped.wait_for(|stopped| *stopped)).await;
    }

    /// Reads the log by one consumer, until messages may be missing.
    async fn read(self: &Arc<Self>) -> Result<(), PortError> {
        if self.replica.lock().is_new() {
            let found = setup::find(&self.link, &self.stream).await?;
            let Some(info) = found else {
                return Err(self.link.failure(PortErrorKind::Corrupt, "the stream was deleted, connect anew"));
            };
            self.replica.lock().begin(info.state.messages, info.state.first_seq, info.state.last_seq);
        }
        let from = self.replica.lock().next();
        let mut reader = Reader::open(&self.link, &self.stream, Range::From(from)).await?;
        while let First::One(Some(entry)) = race(reader.next(), self.reopen.notified()).await {
            let (place, now) = (entry.place, self.link.base().clock.now());
            let (applied, is_due) = {
                let mut replica = self.replica.lock();
                let payload = entry.message.payload;
                let applied = replica.apply(place.sequence, place.stored_at, now, payload, self.origin);
                (applied, replica.is_due())
            };
            match applied {
                Applied::Done(done) => self.answer(done),
                Applied::Gap => break,
            }
            if is_due && !self.is_checkpointing.swap(true, Ordering::AcqRel) {
                Spawner::Tokio.spawn(self.clone().checkpoint());
            }
        }
        reader.close().await;
        Ok(())
    }

    /// Stores the state in the log, and removes the messages before it.
    async fn checkpoint(self: Arc<Self>) {
        let base = self.link.base();
        // All handles see at the same time that one is due. Most often the first spares the others.
        base.clock.sleep(Duration::from_micros(base.entropy.up_to(300_000))).await;
        let image = self.replica.lock().image();
        if let Some((at, state)) = image {
            // An attempt that fails is repeated with a later entry.
            let _ = self.store_checkpoint(at, &state).await;
        }
        self.is_checkpointing.store(false, Ordering::Release);
    }

    async fn store_checkpoint(&self, at: u64, state: &[u8]) -> Result<(), PortError> {
        let size = self.largest.min(PART);
        let parts = state.len().div_ceil(size) as u64;
        let writer = self.link.base().entropy.next_u64();
        for (part, bytes) in (0..).zip(state.chunks(size)) {
            let entry = entry::checkpoint(writer, at, (part, parts), bytes);
            let stored = self.link.store(self.subject.clone(), None, entry).await?;
            stored.map_err(|error| self.link.rejected("the queue cannot be written", &error))?;
        }
        let call = format!("STREAM.PURGE.{}", self.stream);
        let purged = self.link.api::<serde::de::IgnoredAny>(&call, &Purge { seq: at + 1 }, Effect::Writes).await?;
        purged.map(drop).map_err(|error| self.link.rejected("the log cannot be shortened", &error))
    }

    fn answer(&self, done: Vec<(u64, Outcome)>) {
        for (number, outcome) in done {
            if let Some(caller) = self.callers.lock().remove(&number) {
                // The caller may be gone.
                let _ = caller.send(outcome);
            }
        }
        self.changed.send_replace(());
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
