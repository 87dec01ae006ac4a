//! A router: finds the shard of an order by its copy of the map. Each shard has its own pipeline and breaker.
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use steadfast::{
    BoxedPipeline, CallError, Pipeline,
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, OpenConfig, TripConfig},
    retry::{Retry, RetryConfig},
    sharding::{FanOut, FanOutConfig, FanOutResult, RouteError, ShardDirectory, ShardError, ShardId},
    timeout::Timeout,
};

use crate::{
    Result,
    engine::Engine,
    shard::Shared,
    wire::{Answer, Ask, Http, HttpError, Order, classify},
};

pub type Failed = CallError<HttpError>;

#[derive(Clone)]
pub struct Router {
    pub directory: ShardDirectory,
    map: Shared,
    http: Http,
    fan_out: FanOut,
    shards: Arc<Mutex<BTreeMap<ShardId, Protected>>>,
}

#[derive(Clone)]
struct Protected {
    pipeline: BoxedPipeline<Answer, HttpError>,
    breaker: CircuitBreaker,
}

impl Router {
    pub async fn open(engine: &Engine) -> Result<Self> {
        let map = Shared::open(engine).await?;
        Ok(Self {
            directory: map.directory().await?,
            map,
            http: Http::new(),
            fan_out: FanOut::new(FanOutConfig::default())?,
            shards: Arc::default(),
        })
    }

    /// Pipeline for the calls of one shard.
    fn protected(&self, shard: ShardId) -> Protected {
        let mut shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        shards.entry(shard).or_insert_with(|| Protected::new(shard)).clone()
    }

    pub fn breakers(&self) -> Vec<CircuitBreaker> {
        let shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        shards.values().map(|shard| shard.breaker.clone()).collect()
    }

    /// Sends a request to one shard.
    pub async fn ask(&self, shard: ShardId, ask: &Ask) -> std::result::Result<Answer, Failed> {
        let call = || async {
            match self.map.address(shard).await {
                Ok(Some(address)) => self.http.ask(address, ask).await,
                Ok(None) => Err(HttpError::Connect),
                Err(error) => Err(HttpError::Lost(error.to_string())),
            }
        };
        self.protected(shard).pipeline.call(call).await
    }

    /// Sends a request to the shard that owns the tenant, with the version of the map.
    async fn route(
        &self,
        tenant: u32,
        ask: impl Fn(u64) -> Ask + Sync,
    ) -> std::result::Result<Answer, RouteError<Failed>> {
        let at_shard = |to: steadfast::sharding::Routed| {
            let ask = ask(to.version);
            async move {
                match self.ask(to.shard, &ask).await {
                    Ok(Answer::Refused(refused)) => Err(ShardError::Refused(refused)),
                    Ok(answer) => Ok(answer),
                    Err(error) => Err(ShardError::Failed(error)),
                }
            }
        };
        self.directory.route(&tenant, at_shard).await
    }

    pub async fn put(&self, order: Order) -> std::result::Result<(), RouteError<Failed>> {
        self.route(order.tenant, |version| Ask::Put { order, version }).await.map(drop)
    }

    pub async fn get(&self, tenant: u32, number: u32) -> std::result::Result<Option<Order>, RouteError<Failed>> {
        match self.route(tenant, |version| Ask::Get { tenant, number, version }).await? {
            Answer::Orders(orders) => Ok(orders.first().copied()),
            _ => Ok(None),
        }
    }

    /// Sends a request to all shards at once.
    pub async fn ask_all(&self, ask: &Ask) -> FanOutResult<Answer, Failed> {
        self.fan_out.run(&self.directory.map().shards(), |shard| self.ask(shard, ask)).await
    }
}

impl Protected {
    fn new(shard: ShardId) -> Self {
        let open = OpenConfig::default().initial_delay(Duration::from_millis(200));
        let config = CircuitBreakerConfig::default().trip(TripConfig::default().consecutive_failures(5)).open(open);
        #[expect(clippy::expect_used, reason = "written here, so it is right")]
        let breaker = CircuitBreaker::builder(config).name(shard.to_string()).build().expect("a breaker");
        #[expect(clippy::expect_used, reason = "written here, so it is right")]
        // Every request may be repeated: a put contains the whole row.
        let retry = Retry::new(RetryConfig::interactive().idempotent(true)).expect("a retry");
        let pipeline = Pipeline::new()
            .named(shard.to_string())
            .classify(classify)
            .then(Timeout::new(crate::REQUEST * 2))
            .then(retry)
            .then(breaker.clone())
            .then(Timeout::new(crate::REQUEST))
            .boxed();
        Self { pipeline, breaker }
    }
}
