//! A service in which every part has a fault, for the people on call: the faults show in its metrics.
//!
//! A bank is away, so that a breaker opens and retries exceed their budget. Messages arrive faster than they are handled, and
//! some become dead letters. Some sagas are stuck, a partition of a stream is halted, an election has no leader, a cache is
//! without its remote tier, and a shared limit without its store. `scripts/boards` lets Prometheus scrape it.
#![allow(missing_docs, reason = "a program has no readers from outside")]
#[path = "common/mod.rs"]
mod common;

use std::{future::pending, process::ExitCode, sync::Arc, time::Duration};

use clap::Parser;
use common::{Result, end, say, serve_metrics};
use serde_json::json;
use steadfast::{
    FailureKind, Pipeline, Verdict,
    backend::{self, Backend},
    backoff::BackoffConfig,
    cache_aside::{CacheAside, CacheAsideConfig, RemoteConfig},
    call::idempotent,
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, KeyedBreakers, KeyedBreakersConfig},
    codec::Codec,
    leader_election::{LeaderElection, LeaderElectionConfig},
    metrics::Metrics,
    port::PortErrorKind,
    queue::{Message, Queue},
    queue_listener::{Disposition, IdleConfig, QueueListener, QueueListenerConfig, Work},
    retry::{Retry, RetryBudget, RetryBudgetConfig, RetryConfig},
    saga::{Plan, Saga, SagaConfig, Step, StepOutcome},
    store::Store,
    stream::{Delivered, Event, Producer, ProducerConfig, StoreTopic, StreamProcessor, StreamProcessorConfig},
    testing::{PortAnswer, ScriptedPort},
    throttling::{AdaptiveLimitConfig, AdaptiveLimiter, Quota, SharedRateLimitConfig, SharedRateLimiter, WhenDown},
    time::Clock,
    work::EventDisposition,
};
use tokio::task::JoinSet;

const MS: fn(u64) -> Duration = Duration::from_millis;

/// A service in which every part has a fault, and its metrics.
#[derive(Parser)]
struct Args {
    /// Seconds for which the service runs.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Port of `/metrics`; a free one by default.
    #[arg(long, default_value_t = 0)]
    port: u16,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    end(show(&args).await)
}

/// A store that does not answer.
fn away(backend: &Backend) -> Arc<dyn Store> {
    let script = ScriptedPort::new(&Clock::tokio());
    script.always("", PortAnswer::fail(PortErrorKind::Unavailable));
    script.store(backend.store())
}

fn quick() -> BackoffConfig {
    BackoffConfig::default().between(MS(5), MS(50))
}

async fn show(args: &Args) -> Result<(serde_json::Value, bool)> {
    let (clock, metrics) = (Clock::tokio(), serve_metrics(args.port).await?);
    let backend = backend::open("memory:").await?;
    let mut parts = JoinSet::new();
    parts.spawn(calls(metrics.clone()));
    macro_rules! part {
        ($run:path) => {
            parts.spawn($run(metrics.clone(), backend.clone()))
        };
    }
    part!(invoices);
    part!(refunds);
    part!(orders);
    part!(readings);
    part!(elections);
    part!(prices);
    part!(mails);
    tokio::select! {
        Some(ended) = parts.join_next() => return Err(format!("a part has ended: {:?}", ended?).into()),
        () = clock.sleep(Duration::from_secs(args.seconds)) => {}
    }
    let letters = backend.queue("refunds").await?.dead_letters().ok_or("no dead letters")?.depth().await?.total();
    say(format!("{letters} dead letters"));
    Ok((json!({ "dead_letters": letters }), letters > 0))
}

// ---- calls to a bank that is away, with a breaker, and to a post office, with a budget for retries -----------------------------

type Answer = std::result::Result<(), &'static str>;

async fn calls(metrics: Metrics) -> Result<()> {
    let verdict = |answer: &Answer| match answer {
        Ok(()) => Verdict::success(),
        Err(_) => Verdict::failure(FailureKind::Connect),
    };
    let limit = AdaptiveLimiter::new(AdaptiveLimitConfig::default())?;
    let breaker = CircuitBreaker::new(CircuitBreakerConfig::default())?;
    metrics.watch("bank", &limit)?;
    metrics.watch("bank", &breaker)?;
    let bank = Pipeline::new().then(metrics.calls("bank")).then(limit).then(breaker).classify(verdict);

    let budget = RetryBudget::new(RetryBudgetConfig::default())?;
    let retry = Retry::builder(RetryConfig::default().backoff(quick())).budget(&budget).build()?;
    metrics.watch("post", &budget)?;
    metrics.watch("post", &retry)?;
    let post = Pipeline::new().then(metrics.calls("post")).then(retry).classify(verdict);

    let branches = KeyedBreakers::<u32>::new(KeyedBreakersConfig::default())?;
    metrics.watch("branches", &branches)?;
    branches.get(&7).isolate();
    loop {
        let _ = bank.call(async || Err::<(), _>("the bank is away")).await;
        let _ = post.call(idempotent(async || Err::<(), _>("the post office is away"))).await;
        Clock::tokio().sleep(MS(5)).await;
    }
}

// ---- queues: one has more messages than its handler handles, and one has messages that nobody can read ------------------------

async fn invoices(metrics: Metrics, backend: Backend) -> Result<()> {
    let queue = backend.queue("invoices").await?;
    for _ in 0..5 {
        queue.send((0..1_000).map(|number| Message::new(number.to_string())).collect()).await?;
    }
    let listener = QueueListener::new(queue, QueueListenerConfig::default().tasks(1, 2).batch(2))?;
    metrics.watch("invoices", &listener)?;
    listener
        .run(pending(), async |_: Work| {
            Clock::tokio().sleep(MS(500)).await;
            Disposition::Complete
        })
        .await?;
    Ok(())
}

async fn refunds(metrics: Metrics, backend: Backend) -> Result<()> {
    let queue = backend.queue("refunds").await?;
    let config =
        QueueListenerConfig::default().max_attempts(2).retry(quick()).idle(IdleConfig::between(MS(10), MS(100)));
    let listener = QueueListener::new(queue.clone(), config)?;
    metrics.watch("refunds", &listener)?;
    let sends = async {
        for number in 0_u64.. {
            let body = if number % 3 == 0 { "unreadable" } else { "12 euros" };
            let _ = queue.send(vec![Message::new(body)]).await;
            Clock::tokio().sleep(MS(300)).await;
        }
    };
    let handle = async |work: Work| {
        if work.body == "unreadable" { Disposition::retry("unreadable") } else { Disposition::Complete }
    };
    tokio::join!(sends, listener.run(pending(), handle)).1?;
    Ok(())
}

// ---- sagas: some are compensated, and some cannot be -------------------------------------------------------------------------

async fn orders(metrics: Metrics, backend: Backend) -> Result<()> {
    let undo = |step: Step<String>| async move {
        if *step == "torn" { StepOutcome::failed("the seat is torn out") } else { StepOutcome::completed() }
    };
    let pay = |step: Step<String>| async move {
        if *step == "paid" { StepOutcome::completed() } else { StepOutcome::failed("not paid") }
    };
    let plan = Plan::<String>::new().step_fn("seat", |_| async { StepOutcome::completed() }, undo).pivot("pay", pay);
    let codec = Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
    let saga = Saga::new("order", backend.store(), codec, plan, SagaConfig::default())?;
    metrics.watch("orders", &saga)?;
    for (number, order) in ["paid", "not paid", "paid", "torn"].iter().cycle().enumerate() {
        saga.run(&format!("order-{number}"), (*order).to_owned()).await?;
        Clock::tokio().sleep(MS(100)).await;
    }
    Ok(())
}

// ---- a stream: one group falls behind and has dead letters, another one has none and halts -----------------------------------

async fn readings(metrics: Metrics, backend: Backend) -> Result<()> {
    let topic = StoreTopic::open(backend.store(), "readings", 4).await?;
    let config =
        StreamProcessorConfig::default().max_deliveries(1).max_in_flight(1).rebalance_interval(MS(500)).retry(quick());
    let member = |group: &str| StreamProcessor::builder(topic.clone(), group, backend.lease(), backend.store(), config);
    let slow = member("archive").dead_letters(backend.queue("unreadable").await?).build()?;
    let halts = member("dashboard").build()?;
    metrics.watch("archive", &slow)?;
    metrics.watch("dashboard", &halts)?;
    let producer = Producer::new(topic.clone(), ProducerConfig::default())?;
    let produce = async {
        for number in 0_u32.. {
            let _ = producer.append(Event::new(number.to_string()).key(format!("device-{}", number % 7))).await;
            Clock::tokio().sleep(MS(5)).await;
        }
    };
    let read = async |event: Delivered| {
        Clock::tokio().sleep(MS(40)).await;
        if event.event.body.ends_with(b"7") {
            EventDisposition::retry("unreadable")
        } else {
            EventDisposition::Complete
        }
    };
    let ends = tokio::join!(produce, slow.run(pending(), read), halts.run(pending(), read));
    ends.1?;
    Ok(ends.2?)
}

// ---- elections: of one who leads, and of nobody ------------------------------------------------------------------------------

async fn elections(metrics: Metrics, backend: Backend) -> Result<()> {
    let config = LeaderElectionConfig::of_term(Duration::from_secs(2));
    let of = |name: &str| LeaderElection::builder(backend.lease(), name.to_owned(), config).build();
    let (sweeper, nightly) = (of("sweeper")?, of("nightly")?);
    metrics.watch("sweeper", &sweeper)?;
    // Nobody campaigns.
    metrics.watch("nightly", &nightly)?;
    loop {
        let leads = sweeper.campaign().await?;
        Clock::tokio().sleep(MS(1_000)).await;
        leads.resign().await?;
    }
}

// ---- a cache without its remote tier, and a limit without its store ----------------------------------------------------------

async fn prices(metrics: Metrics, backend: Backend) -> Result<()> {
    let config = CacheAsideConfig::default().ttl(MS(200)).jitter(MS(20)).remote(RemoteConfig::default());
    let codec = Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
    let cache = CacheAside::<u64, u64>::builder(config).name("prices").remote(away(&backend), codec).build()?;
    metrics.watch("prices", &cache)?;
    for number in 0_u64.. {
        let price = || async move { if number % 50 == 0 { Err("no price") } else { Ok(117) } };
        let _ = cache.get_or_load(&(number % 5), price).await;
        Clock::tokio().sleep(MS(10)).await;
    }
    Ok(())
}

async fn mails(metrics: Metrics, backend: Backend) -> Result<()> {
    let config = SharedRateLimitConfig::from(Quota::per_second(50)).when_down(WhenDown::LocalShare(0.5));
    let limit = SharedRateLimiter::new(away(&backend), "mails", config)?;
    metrics.watch("mails", &limit)?;
    loop {
        let _ = limit.acquire().await;
        Clock::tokio().sleep(MS(10)).await;
    }
}
