//! The queue that stores and restores large bodies.
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};

use super::{
    ClaimCheckConfig,
    body::{CLAIM, Claim},
    fetch::{Fetched, WIDTH},
};
use crate::{
    build::{Builder, Common, Component, HasEntropy},
    config::ConfigError,
    entropy::Entropy,
    port::{Capabilities, Capability, Failure, PortError},
    queue::{
        Address, Delivery, Depth, Message, MessageId, Peeked, Queue, QueueError, QueueFuture, Receipt, Receive, Settle,
    },
    store::{DeleteOptions, Key, PutOptions, Store},
    sync::Mutex,
    time::Clock,
};

/// A queue whose large bodies are kept in a store. The [module's page](super) has the details.
/// Clones share their state.
#[derive(Clone)]
pub struct ClaimCheck(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) queue: Arc<dyn Queue>,
    store: Arc<dyn Store>,
    config: ClaimCheckConfig,
    entropy: Entropy,
    pub(super) clock: Clock,
    /// Number of bodies that one call fetches at once. Only an estimate of the store's capacity,
    /// hence `Relaxed`.
    width: AtomicUsize,
    /// Settlements that a dropped or late receive left to the next one.
    pub(super) unsettled: Mutex<Vec<(Receipt, Settle)>>,
}

/// Prefix of receipts that contain the row of a body, so that it can be removed. The queue's own
/// receipt follows.
const CHECKED: &str = "claim-check:";

/// Time limit for the removal of bodies by a settlement, and for the bodies of a peek.
const WAIT: Duration = Duration::from_secs(1);

impl Inner {
    pub(super) fn width(&self) -> usize {
        self.width.load(Relaxed)
    }

    /// Halves the width after fetches that timed out, which may have shared a slow connection.
    /// Otherwise widens it by one.
    pub(super) fn widen(&self, in_time: bool) {
        let width = self.width();
        let next = if in_time { (width + 1).min(WIDTH) } else { (width / 2).max(1) };
        self.width.store(next, Relaxed);
    }
}

impl ClaimCheck {
    /// Creates this queue with bodies above the threshold in the store.
    ///
    /// # Errors
    /// If a setting breaks a rule, or `keep` is set and the store has no time to live.
    pub fn new(queue: Arc<dyn Queue>, store: Arc<dyn Store>, config: ClaimCheckConfig) -> Result<Self, ConfigError> {
        Self::builder(queue, store, config).build()
    }

    /// Creates a builder with the arguments of [`new`](Self::new). Its clock bounds waits for the
    /// store; outside a tokio runtime tokio's clock cannot wait, and the caller's own time limit is
    /// the only one. Its entropy makes the keys of bodies.
    pub fn builder(queue: Arc<dyn Queue>, store: Arc<dyn Store>, config: ClaimCheckConfig) -> Builder<Self> {
        Builder::new(ClaimCheckSpec { queue, store, config })
    }

    fn make(spec: ClaimCheckSpec, entropy: Entropy, clock: Clock) -> Self {
        let ClaimCheckSpec { queue, store, config } = spec;
        let (width, unsettled) = (AtomicUsize::new(WIDTH), Mutex::default());
        Self(Arc::new(Inner { queue, store, config, entropy, clock, width, unsettled }))
    }

    fn key<'a>(&'a self, row: &'a str) -> Key<'a> {
        Key::new(&self.0.config.partition, row)
    }

    /// Stores large bodies, several at once. Adds their rows to `rows` before the request is sent.
    async fn check_in(&self, messages: &mut [Message], rows: &mut Vec<String>) -> Result<(), QueueError> {
        let Inner { config, entropy, .. } = &*self.0;
        if messages.iter().any(|message| message.headers.contains_key(CLAIM)) {
            let rule = format_args!("must not have `{CLAIM}`, which is for the claim");
            return Err(PortError::invalid("headers", rule).into());
        }
        let mut running = FuturesUnordered::new();
        for message in messages.iter_mut().filter(|message| message.body.len() > config.threshold) {
            let row = entropy.id();
            rows.push(row.clone());
            if running.len() >= WIDTH
                && let Some(stored) = running.next().await
            {
                let _: () = stored?;
            }
            running.push(self.store_body(row, message));
        }
        while let Some(stored) = running.next().await {
            stored?;
        }
        Ok(())
    }

    async fn store_body(&self, row: String, message: &mut Message) -> Result<(), QueueError> {
        let Inner { store, config, .. } = &*self.0;
        let body = std::mem::take(&mut message.body);
        let (claim, stored) = Claim::check_in(row, body, config.compress);
        let options = config.keep.map_or(PutOptions::new(), |keep| PutOptions::new().ttl(keep));
        store.put(self.key(&claim.row), stored, options).await.map_err(of_store)?;
        message.headers.insert(CLAIM.to_owned(), claim.write());
        Ok(())
    }

    /// Fetches the body of one claim.
    pub(super) async fn body(&self, claim: &Claim) -> Fetched {
        match self.0.store.get(self.key(&claim.row)).await {
            Ok(Some(record)) => match claim.check_out(record.value) {
                Ok(body) => Fetched::Body(body),
                Err(why) => Fetched::Never(format!("the claimed body is corrupted: {why}")),
            },
            Ok(None) => Fetched::Never("the claimed body is missing".to_owned()),
            Err(error) => Fetched::Failed(of_store(error)),
        }
    }

    /// Removes bodies concurrently. Those that cannot be removed in time stay until `keep` ends
    /// them.
    async fn forget(&self, rows: Vec<String>) {
        if rows.is_empty() {
            return;
        }
        let all = async {
            let mut running = FuturesUnordered::new();
            for row in &rows {
                if running.len() >= WIDTH {
                    running.next().await;
                }
                running.push(self.0.store.delete(self.key(row), DeleteOptions::new()));
            }
            while running.next().await.is_some() {}
        };
        self.within(WAIT, all).await;
    }
}

/// Returns the receipt of a message whose body is in the store.
pub(super) fn checked(receipt: &Receipt, row: &str) -> Receipt {
    Receipt::new(match receipt.as_numbers() {
        Some((one, other)) => format!("{CHECKED}{row}:#{one}#{other}"),
        None => format!("{CHECKED}{row}:{}", receipt.as_text().unwrap_or_default()),
    })
}

/// Returns the queue's own receipt, and the row of the body if there is one.
fn plain(receipt: &Receipt) -> (Receipt, Option<String>) {
    let parts = receipt.as_text().and_then(|text| text.strip_prefix(CHECKED)).and_then(|text| text.split_once(':'));
    let Some((row, inner)) = parts else { return (receipt.clone(), None) };
    let numbers = inner.strip_prefix('#').and_then(|numbers| numbers.split_once('#'));
    let numbers = numbers.and_then(|(one, other)| Some((one.parse().ok()?, other.parse().ok()?)));
    let inner = numbers.map_or_else(|| Receipt::new(inner), |(one, other)| Receipt::from_numbers(one, other));
    (inner, Some(row.to_owned()))
}

/// Returns the failure of a store that refused a body or did not answer.
fn of_store(error: impl Failure) -> PortError {
    let other = || PortError::new(crate::port::PortErrorKind::Other, "the store refused the body");
    error.backend().cloned().unwrap_or_else(other)
}

/// Arguments of a claim check, beside name, clock and entropy.
pub struct ClaimCheckSpec {
    queue: Arc<dyn Queue>,
    store: Arc<dyn Store>,
    config: ClaimCheckConfig,
}

impl Component for ClaimCheck {
    type Built = Result<Self, ConfigError>;
    type Spec = ClaimCheckSpec;

    fn assemble(spec: ClaimCheckSpec, common: Common) -> Self::Built {
        spec.config.check()?;
        if spec.config.keep.is_some() {
            spec.store.capabilities().require(Capability::TimeToLive).map_err(|lacks| lacks.refuse("keep"))?;
        }
        Ok(Self::make(spec, common.entropy(), common.clock))
    }
}

impl HasEntropy for ClaimCheck {}

impl Queue for ClaimCheck {
    /// The queue's capabilities without [`Forward`](Capability::Forward), with the store's limit on
    /// the size of a body.
    fn capabilities(&self) -> Capabilities {
        let can = self.0.queue.capabilities().without(Capability::Forward);
        can.largest_value(self.0.store.capabilities().max_value())
    }

    fn identity(&self) -> String {
        self.0.queue.identity()
    }

    /// Returns `None`: the body of a forwarded message would not be stored.
    fn address(&self) -> Option<Address> {
        None
    }

    fn send<'a>(&'a self, mut messages: Vec<Message>) -> QueueFuture<'a, Vec<MessageId>> {
        Box::pin(async move {
            // Checked before any body is stored.
            Message::check(&messages, &self.capabilities())?;
            let mut rows = Vec::new();
            if let Err(error) = self.check_in(&mut messages, &mut rows).await {
                self.forget(rows).await;
                return Err(error);
            }
            let sent = self.0.queue.send(messages).await;
            if let Err(error) = &sent
                && !error.may_have_been_applied()
            {
                self.forget(rows).await;
            }
            sent
        })
    }

    fn receive<'a>(&'a self, receive: Receive) -> QueueFuture<'a, Vec<Delivery>> {
        Box::pin(self.receive_bodies(receive))
    }

    fn settle<'a>(&'a self, settlements: Vec<(Receipt, Settle)>) -> QueueFuture<'a, Vec<Result<(), QueueError>>> {
        Box::pin(async move {
            let can = self.capabilities();
            let (mut rows, mut requests) = (Vec::with_capacity(settlements.len()), Vec::new());
            for (receipt, how) in settlements {
                let refused = how.check(&can).err();
                let (receipt, row) = plain(&receipt);
                rows.push((row.filter(|_| how == Settle::Complete), refused.clone()));
                if refused.is_none() {
                    requests.push((receipt, how));
                }
            }
            let mut answers = self.0.queue.settle(requests).await?.into_iter();
            // Only after the message is completed: without its body it could not be handled again.
            let mut done = Vec::new();
            let settled = rows.into_iter().map_while(|(row, refused)| match refused {
                Some(refused) => Some(Err(refused.into())),
                None => {
                    let answer = answers.next()?;
                    done.extend(row.filter(|_| answer.is_ok()));
                    Some(answer)
                }
            });
            let settled = settled.collect();
            self.forget(done).await;
            Ok(settled)
        })
    }

    fn extend<'a>(&'a self, receipt: &'a Receipt, visibility: Duration) -> QueueFuture<'a, ()> {
        Box::pin(async move { self.0.queue.extend(&plain(receipt).0, visibility).await })
    }

    fn mark_begun<'a>(&'a self, receipt: &'a Receipt, visibility: Duration, begun: bool) -> QueueFuture<'a, ()> {
        Box::pin(async move { self.0.queue.mark_begun(&plain(receipt).0, visibility, begun).await })
    }

    fn depth(&self) -> QueueFuture<'_, Depth> {
        self.0.queue.depth()
    }

    /// Includes the bodies that can be fetched.
    fn peek(&self, max: usize) -> QueueFuture<'_, Vec<Peeked>> {
        Box::pin(async move {
            let mut peeked = self.0.queue.peek(max).await?;
            let claims = peeked.iter().map(|peeked| Claim::read(peeked.headers.get(CLAIM)?).ok());
            let claims: Vec<_> = claims.collect();
            let mut fetched = self.fetch(&claims.iter().flatten().collect::<Vec<_>>(), WAIT).await.into_iter();
            for (peeked, _) in peeked.iter_mut().zip(&claims).filter(|(_, claim)| claim.is_some()) {
                if let Some(Fetched::Body(body)) = fetched.next() {
                    peeked.body = body;
                    peeked.headers.remove(CLAIM);
                }
            }
            Ok(peeked)
        })
    }

    fn purge(&self) -> QueueFuture<'_, u64> {
        self.0.queue.purge()
    }

    fn dead_letters(&self) -> Option<Arc<dyn Queue>> {
        let queue = self.0.queue.dead_letters()?;
        let Inner { store, config, entropy, clock, .. } = &*self.0;
        let spec = ClaimCheckSpec { queue, store: store.clone(), config: config.clone() };
        Some(Arc::new(Self::make(spec, entropy.clone(), clock.clone())))
    }
}

crate::build::debug_fields!(ClaimCheck, |this| queue: this.0.queue, store: this.0.store);
