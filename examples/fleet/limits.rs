//! The limits that all processes keep together, and the breaker of the gateway, whose openings they share.
use std::{fmt, sync::Arc, time::Duration};

use steadfast::{
    BoxedPipeline, CallError, ConfigError, Pipeline, Rejected,
    backend::Backend,
    circuit_breaker::{
        CircuitBreaker, CircuitBreakerConfig, SharedCircuitBreaker, SharedCircuitBreakerConfig,
        SharedCircuitBreakerEvent, State,
    },
    throttling::{Quota, RateLimiter, SharedRateLimitConfig, SharedRateLimiter, WhenDown},
    time::Clock,
    timeout::Timeout,
};

use crate::{
    MS, Plant, Result,
    log::{Fact, Limit},
    node::Node,
};

/// Parts of the service that each process does alone, if the store cannot share them.
pub const RATE: &str = "throttling: shared rate limit";
pub const BREAKER: &str = "circuit_breaker: shared breaker";

/// Interval at which processes read the openings of the others.
pub const POLL: Duration = Duration::from_millis(500);

/// Returns the limit of all processes together.
pub fn config(limit: Limit) -> SharedRateLimitConfig {
    // Better no permits than no limit, while the engine is down.
    let of = |quota: Quota| SharedRateLimitConfig::from(quota).when_down(WhenDown::FailClosed);
    match limit {
        Limit::Payments => of(Quota::per_second(80).burst(20)).max_wait(MS(300)),
        Limit::Mails => of(Quota::per_second(60).burst(10)).leased(MS(100)),
    }
}

/// Returns the part of a limit that a process keeps alone.
pub fn share(limit: Limit, processes: u32) -> Quota {
    let quota = config(limit).quota();
    let share = |permits: u32| (permits / processes).max(1);
    Quota::per_second(share(quota.permits)).burst(quota.burst.map_or(1, share))
}

enum Counted {
    Together(SharedRateLimiter),
    Alone(RateLimiter),
}

pub struct Limits {
    payments: Counted,
    mails: Counted,
    breaker: CircuitBreaker,
    /// The breaker's openings, if they can be shared.
    shared: Option<SharedCircuitBreaker>,
    gateway: BoxedPipeline<(), Failed>,
}

/// The gateway did not take a payment.
#[derive(Debug, Clone)]
pub struct Failed(String);

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the gateway: {}", self.0)
    }
}

impl std::error::Error for Failed {}

pub fn open(node: &Node, backend: &Backend) -> Result<Arc<Limits>> {
    let counted = |limit: Limit| -> Result<Counted, ConfigError> {
        if node.has(Plant::Limit) {
            return Ok(Counted::Alone(RateLimiter::new(config(limit).quota())?));
        }
        let name = node.engine.name(&format!("{limit:?}").to_lowercase());
        match SharedRateLimiter::new(backend.store(), name, config(limit)) {
            Ok(limiter) => Ok(Counted::Together(limiter)),
            Err(refused) => {
                node.log.say(Fact::Without { part: RATE.to_owned(), why: refused.to_string() });
                Ok(Counted::Alone(RateLimiter::new(share(limit, node.args.processes))?))
            }
        }
    };
    let rules = CircuitBreakerConfig::default().count_window(10, 5).open_for(MS(1_000), MS(2_000));
    let breaker = CircuitBreaker::new(rules)?;
    let sharing = SharedCircuitBreakerConfig::default().poll(POLL);
    let shared = SharedCircuitBreaker::builder(breaker.clone(), backend.store(), node.engine.name("gateway"), sharing)
        .notifier(backend.notifier())
        .process(format!("{}-{}", node.number, node.life))
        .build();
    if let Err(refused) = &shared {
        node.log.say(Fact::Without { part: BREAKER.to_owned(), why: refused.to_string() });
    }
    let gateway = Pipeline::new().then(breaker.clone()).then(Timeout::new(MS(500))).boxed();
    let (payments, mails) = (counted(Limit::Payments)?, counted(Limit::Mails)?);
    Ok(Arc::new(Limits { payments, mails, breaker, shared: shared.ok(), gateway }))
}

impl Limits {
    pub fn watch(&self, node: &Node) {
        for (name, limit) in [("payments", &self.payments), ("mails", &self.mails)] {
            match limit {
                Counted::Together(limiter) => node.watch(name, limiter),
                Counted::Alone(limiter) => node.watch(name, limiter),
            }
        }
        node.watch("gateway", &self.breaker);
        if let Some(shared) = &self.shared {
            node.watch("gateway", shared);
        }
    }

    /// Takes a permit.
    pub async fn acquire(&self, node: &Node, limit: Limit) -> Result<(), Rejected> {
        let asked = node.log.now();
        match if limit == Limit::Payments { &self.payments } else { &self.mails } {
            Counted::Together(limiter) => limiter.acquire().await?,
            Counted::Alone(limiter) => limiter.try_acquire()?,
        }
        node.log.say(Fact::Permit { limit, asked });
        Ok(())
    }

    /// Pays an order at the gateway.
    pub async fn pay(&self, node: &Node, order: u32) -> Result<(), CallError<Failed>> {
        let pay = || async {
            let answer = node.http.get(node.world, &format!("/pay/{order}")).await;
            let status = answer.map_err(|error| Failed(error.to_string()))?.status();
            if status.is_success() { Ok(()) } else { Err(Failed(format!("HTTP {}", status.as_u16()))) }
        };
        self.gateway.call(pay).await
    }
}

/// Asks for more permits than there are, keeps the breaker's openings shared, and records what it does.
pub async fn flood(node: Arc<Node>, limits: Arc<Limits>) {
    let clock = Clock::tokio();
    let mails = async {
        loop {
            let wait = match limits.acquire(&node, Limit::Mails).await {
                Ok(()) => MS(0),
                Err(rejected) => rejected.retry_after().unwrap_or_default().clamp(MS(1), MS(20)),
            };
            clock.sleep(wait).await;
        }
    };
    let leases = async {
        if let Counted::Together(mails) = &limits.mails {
            mails.run(std::future::pending()).await;
        }
    };
    let shares = async {
        if let Some(shared) = &limits.shared {
            shared.run(std::future::pending()).await;
        }
    };
    let reports = async {
        let Some(shared) = &limits.shared else { return };
        let mut events = shared.events();
        loop {
            if let Ok(event) = events.recv().await
                && let SharedCircuitBreakerEvent::Reported { open_for } = event.what
            {
                node.log.say(Fact::Reported { millis: open_for.as_millis() as u64 });
            }
        }
    };
    let states = async {
        let mut was_open = false;
        loop {
            let open = limits.breaker.state() == State::Open;
            if open != was_open {
                node.log.say(Fact::Breaker { open });
                was_open = open;
            }
            clock.sleep(MS(20)).await;
        }
    };
    tokio::join!(mails, leases, shares, reports, states);
}
