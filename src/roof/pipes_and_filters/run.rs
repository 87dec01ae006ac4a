//! Running a filter: its handler, and the delivery of its results to the outputs.
use std::{collections::BTreeMap, future::Future, sync::Arc, time::Duration};

use super::{
    Emit, Filter, FilterEvent as Event, LINEAGE,
    emit::Emitted,
    filter::{FilterInner, Output},
    lineage,
};
use crate::{
    backoff::Backoff,
    port::{AskError, BoxFuture, PortError},
    queue::{Message, MessageId},
    queue_listener::Work,
    time::Instant,
    work::{Cancelled, Disposition, PatientSend, SendEnd},
};

/// The parts of a handled message that its results inherit.
struct Origin {
    id: MessageId,
    /// Lineage id; empty until the handler has ended.
    lineage: String,
    is_again: bool,
    headers: BTreeMap<String, String>,
    group: Option<String>,
    /// Age of the message when its handler began, and the times at which that began and ended.
    age: Duration,
    began: Instant,
    ended: Instant,
    left: Option<Duration>,
    cancelled: Cancelled,
}

impl Filter {
    /// Takes messages and runs the handler for each, until `shutdown` completes; then stops, as
    /// [`QueueListener::run`](crate::queue_listener::QueueListener::run) does. Run it in any number
    /// of processes.
    ///
    /// # Errors
    /// Permanent failures of the input, such as a missing permission.
    ///
    /// # Cancel safety
    /// A dropped run drops its handlers. Their messages are delivered again after their visibility
    /// time-out. Prefer `shutdown`.
    pub async fn run<F, H>(&self, shutdown: impl Future<Output = ()>, handler: F) -> Result<(), PortError>
    where
        F: Fn(Work) -> H,
        H: Future<Output: Into<Emit>>,
    {
        let (inner, handler) = (&*self.0, &handler);
        self.listener().run(shutdown, |work: Work| inner.handle(work, handler)).await
    }

    /// Runs like [`run`](Self::run), but passes each task to `spawn`:
    /// `|task| drop(tokio::spawn(task))`. For CPU-bound handlers.
    ///
    /// # Errors
    /// See [`run`](Self::run).
    ///
    /// # Cancel safety
    /// See [`run`](Self::run). A spawned task ends at its next await after this future is dropped.
    pub async fn run_on<F, H>(
        &self,
        spawn: impl Fn(BoxFuture<'static, ()>),
        shutdown: impl Future<Output = ()>,
        handler: F,
    ) -> Result<(), PortError>
    where
        F: Fn(Work) -> H + Send + Sync + 'static,
        H: Future<Output: Into<Emit> + Send> + Send + 'static,
    {
        let (inner, handler) = (self.0.clone(), Arc::new(handler));
        let handle = move |work: Work| {
            let (inner, handler) = (inner.clone(), handler.clone());
            async move { inner.handle(work, &*handler).await }
        };
        self.listener().run_on(spawn, shutdown, handle).await
    }
}

impl FilterInner {
    async fn handle<F, H>(&self, work: Work, handler: &F) -> Disposition
    where
        F: Fn(Work) -> H,
        H: Future<Output: Into<Emit>>,
    {
        let mut origin = self.origin(&work);
        let emitted = match handler(work).await.into().0 {
            Emitted::Otherwise(disposition) => return disposition,
            Emitted::Messages(messages) => messages,
        };
        origin.ended = self.common.clock.now();
        origin.lineage = lineage::of(&origin.headers, self.input, &origin.id).into_owned();
        let mut headers = std::mem::take(&mut origin.headers);
        let (mut forwards, mut sends) = (Vec::new(), Vec::new());
        let last = emitted.len().saturating_sub(1);
        for (number, (to, message)) in emitted.into_iter().enumerate() {
            let Some(at) = self.outputs.iter().position(|output| output.name() == to.as_deref().unwrap_or_default())
            else {
                return Disposition::retry(format_args!("the filter has no output `{}`", to.unwrap_or_default()));
            };
            let inherited = if number == last { std::mem::take(&mut headers) } else { headers.clone() };
            let mut message = self.descendant(message, &origin, inherited);
            let id = lineage::of_output(&origin.lineage, self.name.as_str(), number);
            match &self.outputs[at].address {
                Some(address) => forwards.push((address.clone(), message.header(LINEAGE, id))),
                None => {
                    if self.outputs[at].window.is_some() {
                        message.deduplication_id = Some(id.clone());
                    }
                    sends.push((at, message.header(LINEAGE, id)));
                }
            }
        }
        if !sends.is_empty() {
            if let Err(otherwise) = self.send_all(sends, &origin).await {
                return otherwise;
            }
            let wait = self.common.clock.now() - origin.ended;
            forwards.iter_mut().for_each(|(_, message)| message.has_waited(wait));
        }
        Disposition::forward(forwards)
    }

    fn origin(&self, work: &Work) -> Origin {
        let began = self.common.clock.now();
        Origin {
            id: work.id.clone(),
            lineage: String::new(),
            is_again: work.deliveries > 1,
            headers: work.headers.clone(),
            group: work.group.clone(),
            age: work.age,
            began,
            ended: began,
            left: work.time_left(),
            cancelled: work.cancel().clone(),
        }
    }

    /// Returns a result with the parts that it inherits and does not set itself.
    fn descendant(&self, mut message: Message, origin: &Origin, inherited: BTreeMap<String, String>) -> Message {
        let own = std::mem::replace(&mut message.headers, inherited);
        if let Some(left) = origin.left {
            message = message.expires_after(left.saturating_sub(origin.ended - origin.began));
        }
        message.headers.extend(own);
        if message.group.is_none() {
            message.group.clone_from(&origin.group);
        }
        message
    }

    /// Sends results to queues of other engines, before their message ends. All of one output are
    /// one request, or several if they are too many.
    async fn send_all(&self, mut sends: Vec<(usize, Message)>, origin: &Origin) -> Result<(), Disposition> {
        // The handler has done its work. The time limit is not that of the outputs.
        origin.cancelled.lift_limit();
        // The sort is stable, so the messages of each output keep their order.
        sends.sort_by_key(|(at, _)| *at);
        let mut sends = sends.into_iter().peekable();
        while let Some((at, first)) = sends.next() {
            let output = &self.outputs[at];
            let most = output.queue.capabilities().max_batch().max(1);
            let mut messages = vec![first];
            while messages.len() < most
                && let Some((_, next)) = sends.next_if(|(next, _)| *next == at)
            {
                messages.push(next);
            }
            self.send(output, messages, origin).await?;
        }
        Ok(())
    }

    /// Sends messages to one output, and repeats that until it succeeds. The listener renews the
    /// lease meanwhile. Returns the end of the delivery if they are refused for good, or the filter
    /// stops.
    async fn send(&self, output: &Output, messages: Vec<Message>, origin: &Origin) -> Result<(), Disposition> {
        let Self { config, common, .. } = self;
        let mut busy = config.busy;
        busy.cap = busy.cap.min(config.visibility / 8).max(busy.base);
        let delays = Backoff::checked(busy, &common.entropy());
        let patient = PatientSend { queue: &*output.queue, clock: &common.clock, limit: config.call_limit(), delays };
        let mut is_reported = false;
        let copies = |now: Instant, lost: Option<Instant>| {
            let age = origin.age.saturating_add(now - origin.began);
            let is_forgotten = |after: Duration| output.window.is_none_or(|window| after >= window);
            // By an earlier delivery, or by the request of this one whose reply was lost.
            let may_repeat = origin.is_again && is_forgotten(age) || lost.is_some_and(|at| is_forgotten(now - at));
            if may_repeat && !std::mem::replace(&mut is_reported, true) {
                let (output, id, lineage) = (output.name().to_owned(), origin.id.clone(), origin.lineage.clone());
                self.event(|| Event::MayRepeat { output, id, lineage, age });
            }
            let mut messages = messages.clone();
            messages.iter_mut().for_each(|message| message.has_waited(now - origin.ended));
            messages
        };
        let failed = |error: &AskError<_>| {
            let (output, id, kind) = (output.name().to_owned(), origin.id.clone(), error.kind());
            self.event(|| Event::SendFailed { output, id, kind });
        };
        // The signal of the time limit is none: the handler has ended.
        patient.send(copies, failed, origin.cancelled.stopped()).await.map_err(|end| match end {
            SendEnd::Stopped => Disposition::Release,
            SendEnd::Refused(error) => {
                let name = output.name();
                Disposition::retry(format_args!("the output `{name}` refused the results: {error}"))
            }
        })
    }
}
