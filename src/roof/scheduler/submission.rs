//! Submissions, and the messages that carry them.
use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;

use crate::{
    hash::stable_hash,
    port::{Capabilities, PortError},
    queue::{EXPIRES_AFTER, Message, MessageId},
    saga::{Origin, Silent},
};

/// Header with the id of the saga, in messages of a scheduler and in its status messages.
pub const SAGA_ID: &str = "saga-id";

/// Header with the status, in status messages: `received`, `completed`, `compensated` or `stuck`.
pub const STATUS: &str = "saga-status";

/// Headers of the scheduler's messages: the purpose, and the epoch that a supervisor saw.
const KIND: &str = "saga-message";
const EPOCH: &str = "saga-epoch";
/// Headers by which [`ReplyTo`](crate::queue::ReplyTo) finds the address of a reply.
const REPLY_TO: &str = "reply-to";
const CORRELATION_ID: &str = "correlation-id";
/// Name of the ordering key in the record of a saga.
const ORDERING_KEY: &str = "ordering-key";

/// A saga to be run by a [`Scheduler`](super::Scheduler).
///
/// ```
/// use std::time::Duration;
/// use steadfast::scheduler::Submission;
///
/// let submission = Submission::new("order-42", "two books")
///     .deadline(Duration::from_secs(3600))
///     .reply_to("web-1", "request-7")
///     .ordering_key("customer-9")
///     .header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
/// assert_eq!(submission.id, "order-42");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Submission<T> {
    /// Id of the saga. A second submission with the same id has no effect.
    pub id: String,
    /// The initial state.
    pub state: T,
    /// Time from the acceptance of the submission after which the saga is compensated, if it has
    /// not passed its pivot. No limit by default.
    pub deadline: Option<Duration>,
    /// Queue for status messages, by name, and the correlation id that they carry.
    pub reply_to: Option<(String, String)>,
    /// Sagas with the same key run one at a time, in the order of their submissions.
    pub ordering_key: Option<String>,
    /// Headers of its message, which the record of the saga keeps: each step reads them by
    /// [`Step::headers`](crate::saga::Step::headers), in any process. For the context of a trace,
    /// such as `traceparent`.
    ///
    /// At most 16 KiB of names and values together, as each step writes them again. Names of the
    /// scheduler's own are refused: `saga-..`, `reply-to`, `correlation-id` and `expires-after`.
    pub headers: BTreeMap<String, String>,
}

impl<T> Submission<T> {
    /// Creates a submission.
    pub fn new(id: impl Into<String>, state: T) -> Self {
        let headers = BTreeMap::new();
        Self { id: id.into(), state, deadline: None, reply_to: None, ordering_key: None, headers }
    }

    /// Sets the [deadline](field@Self::deadline).
    #[must_use]
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Sets the [queue for status messages](field@Self::reply_to), and their correlation id.
    #[must_use]
    pub fn reply_to(mut self, queue: impl Into<String>, correlation_id: impl Into<String>) -> Self {
        self.reply_to = Some((queue.into(), correlation_id.into()));
        self
    }

    /// Sets the [ordering key](field@Self::ordering_key).
    #[must_use]
    pub fn ordering_key(mut self, key: impl Into<String>) -> Self {
        self.ordering_key = Some(key.into());
        self
    }

    /// Adds or replaces a [header](field@Self::headers).
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// Rejects headers that break a rule.
    pub(super) fn check_headers(&self) -> Result<(), PortError> {
        if let Some(name) = self.headers.keys().find(|name| is_own(name)) {
            let rule = format_args!("must not have {name:?}, one of the scheduler's own");
            return Err(PortError::invalid("headers", rule));
        }
        let bytes: usize = self.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        if bytes > HEADERS {
            let rule = format_args!("must have at most {HEADERS} bytes together, has {bytes}");
            return Err(PortError::invalid("headers", rule));
        }
        Ok(())
    }

    /// Returns the message of this submission, with the encoded state as its body.
    pub(super) fn into_message(self, body: Vec<u8>) -> Message {
        let mut message = Message::new(body);
        message.headers = self.headers;
        message = message.header(SAGA_ID, self.id.clone()).header(KIND, Kind::Submit.as_str());
        // Apart from the ids of a supervisor's messages: any text is an id.
        message = message.deduplicate(format!("s/{}", self.id));
        if let Some(deadline) = self.deadline {
            message = message.expires_after(deadline);
        }
        if let Some((queue, correlation_id)) = self.reply_to {
            message = message.header(REPLY_TO, queue).header(CORRELATION_ID, correlation_id);
        }
        match self.ordering_key {
            Some(key) => message.group(key),
            None => message,
        }
    }
}

/// The purpose of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Starts a saga.
    Submit,
    /// Continues a saga that was released.
    Wake,
    /// Continues an open saga without an executor.
    Resume,
    /// The same, and cancels it.
    Cancel,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Submit, Self::Wake, Self::Resume, Self::Cancel];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Submit => "submit",
            Self::Wake => "wake",
            Self::Resume => "resume",
            Self::Cancel => "cancel",
        }
    }
}

/// Returns a de-duplication id as it is, or its hash if it is too long for the queue.
pub(super) fn fitting(id: String, can: &Capabilities) -> String {
    if id.len() <= can.max_key() { id } else { format!("{:016x}", stable_hash(id.as_bytes())) }
}

/// Headers of the scheduler that the record of a saga keeps.
const KEPT: [&str; 3] = [EXPIRES_AFTER, REPLY_TO, CORRELATION_ID];

/// Largest size of a submission's headers, in bytes. W3C "Baggage" asks for 8,192 bytes of its
/// header alone.
const HEADERS: usize = 16 << 10;

/// Returns `true` if a header is the scheduler's own.
fn is_own(name: &str) -> bool {
    KEPT.contains(&name) || name.starts_with("saga-")
}

/// Returns the parts of a submission's message that its saga keeps, for its steps and for the
/// messages of a supervisor.
pub(super) fn origin(headers: &BTreeMap<String, String>, group: Option<&str>) -> Origin {
    let (own, users): (BTreeMap<_, _>, BTreeMap<_, _>) =
        headers.clone().into_iter().partition(|(name, _)| is_own(name));
    let kept = own.into_iter().filter(|(name, _)| KEPT.contains(&name.as_str()));
    let texts = kept.chain(group.map(|group| (ORDERING_KEY.to_owned(), group.to_owned()))).collect();
    Origin { texts, headers: Arc::new(users) }
}

/// Returns a message with the headers of the submission, and without its ordering key.
fn again(origin: Origin) -> Message {
    let mut message = Message::new(Bytes::new());
    message.headers = origin.texts;
    message.headers.remove(ORDERING_KEY);
    message.headers.extend(Arc::unwrap_or_clone(origin.headers));
    message
}

/// Returns the message that continues a saga, and reports the outcome if the saga ends. The group
/// stays with the submission's message. The deadline counts anew: it holds if that message is lost.
pub(super) fn wake(id: &str, origin: Origin) -> Message {
    again(origin).header(SAGA_ID, id).header(KIND, Kind::Wake.as_str())
}

/// Returns the message of a supervisor, in place of the submission's.
pub(super) fn resume(silent: Silent, cancels: bool, can: &Capabilities) -> Message {
    let Silent { id, failures, epoch, origin, .. } = silent;
    let kind = if cancels { Kind::Cancel } else { Kind::Resume };
    let group = origin.texts.get(ORDERING_KEY).cloned();
    let message = Message { group, ..again(origin) }.header(SAGA_ID, &*id).header(KIND, kind.as_str());
    message.header(EPOCH, epoch.to_string()).deduplicate(fitting(format!("r/{id}#{epoch}#{failures}"), can))
}

/// The parts of a scheduler's message.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Parts<'a> {
    pub(super) id: &'a str,
    pub(super) kind: Kind,
    pub(super) deadline: Option<Duration>,
    pub(super) epoch: Option<u64>,
}

impl<'a> Parts<'a> {
    /// Reads the headers of a message; `None` if it is none of a scheduler.
    pub(super) fn of(headers: &'a BTreeMap<String, String>) -> Option<Self> {
        let kind = headers.get(KIND)?;
        let kind = Kind::ALL.into_iter().find(|known| known.as_str() == kind)?;
        let number = |name: &str| headers.get(name).map(|value| value.parse::<u64>().ok());
        let deadline = number(EXPIRES_AFTER).map_or(Some(None), |nanos| nanos.map(Some))?.map(Duration::from_nanos);
        let epoch = number(EPOCH).map_or(Some(None), |epoch| epoch.map(Some))?;
        Some(Self { id: headers.get(SAGA_ID)?, kind, deadline, epoch })
    }
}

/// Returns the number by which an execution knows its message; never 0. Messages of two queues may
/// have one id.
pub(super) fn number_of(queue: &str, id: &MessageId) -> u64 {
    stable_hash(format!("{id} {queue}").as_bytes()).max(1)
}
