//! What happens to one request on its way.
use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::sync::watch;

use super::{
    super::link::{self, Behind, Link, unavailable},
    FaultConfig, FaultCounts,
};
use crate::{
    config::ConfigError,
    entropy::Entropy,
    lease::Lease,
    notify::Notifier,
    port::{BoxFuture, PortError},
    queue::Queue,
    store::Store,
    sync::{Mutex, MutexGuard},
    time::{Clock, nanos},
};

/// A network between clients and backends. Clones are the same network.
#[derive(Clone)]
pub struct FaultNetwork(Arc<SharedNetwork>);

struct SharedNetwork {
    state: Mutex<NetworkState>,
    entropy: Entropy,
    clock: Clock,
}

struct NetworkState {
    config: FaultConfig,
    counts: FaultCounts,
    clients: BTreeMap<String, watch::Sender<Connection>>,
    /// Requests that were dropped on the way, and will still arrive.
    late: Vec<LateRequest>,
}

type LateRequest = Box<dyn FnOnce() -> BoxFuture<'static, ()> + Send>;

/// State of one client's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Connection {
    paused: bool,
    cut: bool,
}

/// One client of a [`FaultNetwork`]; it wraps the backends that it reaches. Clones are the same
/// client.
#[derive(Clone)]
pub struct FaultClient {
    network: FaultNetwork,
    name: String,
    link: watch::Sender<Connection>,
}

impl FaultNetwork {
    /// Creates a network whose faults the seed determines. Latency passes on this clock.
    ///
    /// # Errors
    /// If a setting is invalid.
    pub fn new(config: FaultConfig, seed: u64, clock: &Clock) -> Result<Self, ConfigError> {
        config.check()?;
        let state = NetworkState { config, counts: FaultCounts::default(), clients: BTreeMap::new(), late: Vec::new() };
        let (state, entropy) = (Mutex::new(state), Entropy::from_seed(seed));
        Ok(Self(Arc::new(SharedNetwork { state, entropy, clock: clock.clone() })))
    }

    /// Returns the client with this name.
    pub fn client(&self, name: &str) -> FaultClient {
        let link = self.state().clients.entry(name.to_owned()).or_default().clone();
        FaultClient { network: self.clone(), name: name.to_owned(), link }
    }

    /// Replaces the settings.
    ///
    /// # Errors
    /// If a setting is invalid; nothing is changed.
    pub fn configure(&self, config: FaultConfig) -> Result<(), ConfigError> {
        config.check()?;
        self.state().config = config;
        Ok(())
    }

    /// Applies all requests that their callers have dropped, and that would still arrive with those
    /// that follow: before a test looks at what is left.
    ///
    /// # Cancel safety
    /// Requests that were applied stay, and one that is being applied may be lost. The same call
    /// again applies the rest.
    pub async fn deliver_late(&self) {
        while !self.state().late.is_empty() {
            self.deliver_one().await;
        }
    }

    /// Returns the counts of faults so far.
    pub fn counts(&self) -> FaultCounts {
        self.state().counts
    }

    fn state(&self) -> MutexGuard<'_, NetworkState> {
        self.0.state.lock()
    }

    /// Draws whether a request belongs to `share`.
    fn hits(&self, share: f64) -> bool {
        share > 0.0 && self.0.entropy.unit() < share
    }

    async fn travel(&self, FaultConfig { min_latency, max_latency, .. }: FaultConfig) {
        let spread = self.0.entropy.up_to(nanos(max_latency.saturating_sub(min_latency)));
        let latency = min_latency + Duration::from_nanos(spread);
        if !latency.is_zero() {
            self.0.clock.sleep(latency).await;
        }
    }

    /// Applies some of the requests that were dropped on the way.
    async fn deliver_some(&self) {
        while !self.state().late.is_empty() && self.hits(0.5) {
            self.deliver_one().await;
        }
    }

    /// Applies one of the requests that were dropped on the way, unless there is none.
    async fn deliver_one(&self) {
        let late = {
            let mut state = self.state();
            let Some(last) = state.late.len().checked_sub(1) else { return };
            state.counts.late += 1;
            let at = self.0.entropy.up_to(last as u64) as usize;
            state.late.swap_remove(at)
        };
        late().await;
    }
}

impl FaultClient {
    /// Returns the name of the client.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the store as this client reaches it.
    pub fn store(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(Behind { link: self.clone(), port: store })
    }

    /// Returns the queue as this client reaches it. The wait for messages happens in the backend:
    /// no fault interrupts it.
    pub fn queue(&self, queue: Arc<dyn Queue>) -> Arc<dyn Queue> {
        Arc::new(Behind { link: self.clone(), port: queue })
    }

    /// Returns the leases as this client reaches them.
    pub fn lease(&self, lease: Arc<dyn Lease>) -> Arc<dyn Lease> {
        Arc::new(Behind { link: self.clone(), port: lease })
    }

    /// Returns the notifier as this client reaches it. Notices to a subscriber pass without faults.
    pub fn notifier(&self, notifier: Arc<dyn Notifier>) -> Arc<dyn Notifier> {
        Arc::new(Behind { link: self.clone(), port: notifier })
    }

    /// Pauses the client: its requests wait, and so do replies to requests in flight.
    pub fn pause(&self) {
        self.link.send_modify(|link| link.paused = true);
    }

    /// Ends a pause.
    pub fn resume(&self) {
        self.link.send_modify(|link| link.paused = false);
    }

    /// Cuts the client off: its requests fail, and replies to applied requests are lost.
    pub fn cut(&self) {
        self.link.send_modify(|link| link.cut = true);
    }

    /// Reconnects the client.
    pub fn heal(&self) {
        self.link.send_modify(|link| link.cut = false);
    }

    async fn unpaused(&self) -> Connection {
        let mut link = self.link.subscribe();
        // `self.link` is the sender, so the channel stays open.
        let now = link.wait_for(|link| !link.paused).await;
        now.map(|link| *link).unwrap_or_default()
    }
}

impl Link for FaultClient {
    type Name = ();

    fn name(&self, _: impl FnOnce() -> link::Request) {}

    async fn pass<T: Send + 'static, E: From<PortError> + Send + 'static>(
        &self,
        (): (),
        apply: impl FnMut() -> BoxFuture<'static, Result<T, E>> + Send + 'static,
    ) -> Result<T, E> {
        let network = &self.network;
        let config = {
            let mut state = network.state();
            state.counts.requests += 1;
            state.config
        };
        let mut request = Request { network, share: config.late, apply: Some(apply) };
        self.unpaused().await;
        network.deliver_some().await;
        network.travel(config).await;
        if self.unpaused().await.cut || network.hits(config.errors) {
            request.apply = None;
            network.state().counts.errors += 1;
            return Err(unavailable("the request was lost").into());
        }
        let Some(mut apply) = request.apply.take() else { return Err(unavailable("there is no request").into()) };
        let result = apply().await;
        if network.hits(config.doubled) {
            network.state().counts.doubled += 1;
            // The reply to the second application has no reader.
            let _ = apply().await;
        }
        network.travel(config).await;
        if self.unpaused().await.cut || network.hits(config.lost_replies) {
            network.state().counts.lost_replies += 1;
            return Err(unavailable("the reply was lost").outcome_unknown().into());
        }
        result
    }
}

/// A request on its way to the backend; after a drop it may still arrive.
struct Request<'a, T, E, F>
where
    T: Send + 'static,
    E: Send + 'static,
    F: FnMut() -> BoxFuture<'static, Result<T, E>> + Send + 'static,
{
    network: &'a FaultNetwork,
    share: f64,
    apply: Option<F>,
}

impl<T, E, F> Drop for Request<'_, T, E, F>
where
    T: Send + 'static,
    E: Send + 'static,
    F: FnMut() -> BoxFuture<'static, Result<T, E>> + Send + 'static,
{
    fn drop(&mut self) {
        if let Some(mut apply) = self.apply.take()
            && self.network.hits(self.share)
        {
            let late: LateRequest = Box::new(move || {
                let applied = apply();
                Box::pin(async move { drop(applied.await) })
            });
            self.network.state().late.push(late);
        }
    }
}

crate::build::debug_fields!(FaultNetwork, |this| counts: this.counts());

crate::build::debug_fields!(FaultClient, |this| name: this.name, link: *this.link.borrow());
