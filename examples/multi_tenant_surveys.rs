//! Tenants submit surveys to one service over HTTP, and none can use another's share.
//!
//! Each tenant has its own rate by its tier; rejections are 429 with the time to return. Shown are three phases of
//! two seconds each: normal load; one tenant floods, without an effect on the others; a second instance is added,
//! and the quotas are doubled during the flood. The last line is the result as JSON.
#![allow(missing_docs, reason = "a program has no readers from outside")]
use std::{
    collections::BTreeMap,
    convert::Infallible,
    error::Error,
    io::{self, Write as _},
    net::SocketAddr,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use clap::Parser;
use futures::future::join_all;
use http_body_util::{BodyExt, Full};
use hyper::{Request, Response, StatusCode, body::Bytes, body::Incoming, header::RETRY_AFTER, service::service_fn};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
};
use serde_json::{Value, json};
use steadfast::{
    FailureKind, KindSet, Pipeline,
    http::{ByStatus, refusal},
    retry::{Retry, RetryConfig},
    throttling::{KeyedRateLimitConfig, KeyedRateLimiter, Quota},
    time::Clock,
};
use tokio::net::TcpListener;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;
type Body = Full<Bytes>;
type Http = Client<HttpConnector, Body>;

/// Tenants share a survey service, and one of them floods it.
#[derive(Parser)]
struct Args {
    /// Duration of each phase, in seconds.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
}

/// A tenant, its tier, and its surveys per second: somewhat below its quota.
struct Tenant {
    name: &'static str,
    tier: Option<usize>,
    submits: u32,
}

/// Surveys per second of the free, silver and gold tiers. The quotas of the tenants below add up to 100, the
/// capacity of one instance.
const FREE: u32 = 10;
const TIERS: [u32; 2] = [20, 50];

const TENANTS: [Tenant; 4] = [
    Tenant { name: "adatum", tier: Some(1), submits: 40 },
    Tenant { name: "contoso", tier: Some(0), submits: 15 },
    Tenant { name: "fabrikam", tier: None, submits: 7 },
    Tenant { name: "tailspin", tier: None, submits: 7 },
];
/// The tenant that floods.
const FLOODS: &str = "tailspin";
/// Connections of the flood; each sends as fast as it is answered.
const CONNECTIONS: usize = 8;

fn quotas(instances: u32) -> (Quota, [Quota; 2]) {
    // A burst of half a second.
    let quota = |n: u32| Quota::per_second(n * instances).burst(n * instances / 2);
    (quota(FREE), TIERS.map(quota))
}

#[tokio::main]
async fn main() -> ExitCode {
    match show(Duration::from_secs(Args::parse().seconds)).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(io::stderr().lock(), "multi_tenant_surveys: {error}");
            ExitCode::FAILURE
        }
    }
}

// ---- the service ------------------------------------------------------------------------------------------------------------

struct Service {
    limiter: KeyedRateLimiter<String>,
    /// Stored surveys of each tenant.
    surveys: Mutex<BTreeMap<String, Vec<Value>>>,
}

impl Service {
    async fn open() -> Result<(Arc<Self>, SocketAddr)> {
        let (everybody, tiers) = quotas(1);
        let tier_of = |tenant: &String| TENANTS.iter().find(|known| known.name == tenant)?.tier;
        let config = KeyedRateLimitConfig::from(everybody).tiers(tiers);
        let limiter = KeyedRateLimiter::builder(config).tier_of(tier_of).name("surveys").build()?;
        let service = Arc::new(Self { limiter, surveys: Mutex::default() });
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (address, serving) = (listener.local_addr()?, service.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let serving = serving.clone();
                let answer = service_fn(move |request| answer(serving.clone(), request));
                tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
            }
        });
        Ok((service, address))
    }

    fn stored(&self, tenant: &str) -> usize {
        self.surveys.lock().unwrap_or_else(PoisonError::into_inner).get(tenant).map_or(0, Vec::len)
    }
}

async fn answer(service: Arc<Service>, request: Request<Incoming>) -> std::result::Result<Response<Body>, Infallible> {
    let status = |status| {
        let mut answer = Response::new(Body::default());
        *answer.status_mut() = status;
        Ok(answer)
    };
    let Some(tenant) = request.headers().get("x-tenant").and_then(|name| name.to_str().ok()).map(str::to_owned) else {
        return status(StatusCode::UNAUTHORIZED);
    };
    // Before the body is read: a rejection must be cheap.
    if let Err(rejected) = service.limiter.try_acquire(&tenant) {
        return Ok(refusal(&rejected));
    }
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let Ok(survey) = serde_json::from_slice(&body) else { return status(StatusCode::BAD_REQUEST) };
    let mut surveys = service.surveys.lock().unwrap_or_else(PoisonError::into_inner);
    surveys.entry(tenant).or_default().push(survey);
    status(StatusCode::CREATED)
}

// ---- the tenants ------------------------------------------------------------------------------------------------------------

/// Responses to one tenant.
#[derive(Debug, Clone, Copy, Default)]
struct Answers {
    created: usize,
    refused: usize,
    /// Rejections without a time to return, and all other responses.
    wrong: usize,
}

impl Answers {
    fn count(&mut self, answer: &Response<Incoming>) {
        match answer.status() {
            StatusCode::CREATED => self.created += 1,
            StatusCode::TOO_MANY_REQUESTS if answer.headers().contains_key(RETRY_AFTER) => self.refused += 1,
            _ => self.wrong += 1,
        }
    }
}

async fn submit(http: &Http, service: SocketAddr, tenant: &str, n: usize) -> Result<Response<Incoming>> {
    let survey = json!({ "tenant": tenant, "number": n, "answers": ["yes", "no", "perhaps"] }).to_string();
    let request = Request::post(format!("http://{service}/surveys")).header("x-tenant", tenant);
    Ok(http.request(request.body(Full::new(survey.into()))?).await?)
}

/// Submits surveys evenly, at this rate per second.
async fn behave(clock: &Clock, service: SocketAddr, tenant: &Tenant, time: Duration) -> Result<Answers> {
    let (http, mut answers) = (client(), Answers::default());
    let end = clock.now() + time;
    while clock.now() < end {
        answers.count(&submit(&http, service, tenant.name, answers.created).await?);
        clock.sleep(Duration::from_secs(1) / tenant.submits).await;
    }
    Ok(answers)
}

/// Submits as fast as it is answered, and ignores rejections.
async fn flood(clock: &Clock, service: SocketAddr, tenant: &Tenant, time: Duration) -> Result<Answers> {
    let end = clock.now() + time;
    let connection = async || {
        let (http, mut answers) = (client(), Answers::default());
        while clock.now() < end {
            answers.count(&submit(&http, service, tenant.name, answers.created).await?);
        }
        Ok::<_, Box<dyn Error + Send + Sync>>(answers)
    };
    let mut all = Answers::default();
    for answers in join_all((0..CONNECTIONS).map(|_| connection())).await {
        let answers = answers?;
        all.created += answers.created;
        all.refused += answers.refused;
        all.wrong += answers.wrong;
    }
    Ok(all)
}

fn client() -> Http {
    Client::builder(TokioExecutor::new()).build(HttpConnector::new())
}

// ---- the control ------------------------------------------------------------------------------------------------------------

async fn show(time: Duration) -> Result<bool> {
    let (clock, (service, address)) = (Clock::tokio(), Service::open().await?);
    let say = |what: String| writeln!(io::stdout().lock(), "{what}");
    say(format!("\n{:<34}{:<10}{:>8}{:>9}{:>9}{:>8}", "", "tenant", "may", "created", "refused", ""))?;
    let (mut kept, mut parts) = (true, Vec::new());
    for (part, floods, instances) in
        [("everybody behaves", false, 1), ("one floods", true, 1), ("it floods, two instances", true, 2)]
    {
        let (everybody, tiers) = quotas(instances);
        service.limiter.reconfigure(KeyedRateLimitConfig::from(everybody).tiers(tiers))?;
        let before = TENANTS.each_ref().map(|tenant| service.stored(tenant.name));
        let start = clock.now();
        let all = TENANTS.each_ref().map(|tenant| async {
            if floods && tenant.name == FLOODS {
                flood(&clock, address, tenant, time).await
            } else {
                behave(&clock, address, tenant, time).await
            }
        });
        let all = join_all(all).await;
        let took = clock.now() - start;
        let mut tenants = serde_json::Map::new();
        for ((tenant, answers), before) in TENANTS.iter().zip(all).zip(before) {
            let answers = answers?;
            let quota = tenant.tier.map_or(everybody, |tier| tiers[tier]);
            // At most the burst and the refill; for a flooding tenant nearly that.
            let most = f64::from(quota.largest()) + took.as_secs_f64() * f64::from(quota.permits);
            let is_flood = floods && tenant.name == FLOODS;
            let is_kept = answers.wrong == 0
                && service.stored(tenant.name) - before == answers.created
                && answers.created as f64 <= most + 1.0
                && if is_flood {
                    answers.refused > 0 && answers.created as f64 >= time.as_secs_f64() * f64::from(quota.permits) * 0.8
                } else {
                    answers.refused == 0 && answers.created > 0
                };
            say(format!(
                "{:<34}{:<10}{:>6}/s{:>9}{:>9}  {}",
                if tenant.name == TENANTS[0].name { part } else { "" },
                tenant.name,
                quota.permits,
                answers.created,
                answers.refused,
                if is_kept { "kept" } else { "BROKEN" },
            ))?;
            kept &= is_kept;
            let result = json!({ "created": answers.created, "refused": answers.refused });
            tenants.insert(tenant.name.to_owned(), result);
        }
        parts.push(json!({ "part": part, "instances": instances, "tenants": tenants }));
    }

    // A tenant above its quota that obeys `retry-after`: all its surveys are stored in the end.
    let (patient, http) = (&TENANTS[2], client());
    // Only rejected surveys are submitted again: a rejection stored nothing, while a lost response
    // may have.
    let retry = RetryConfig::batch().idempotent(true).retry_on(KindSet::of(&[FailureKind::Throttled]));
    let retry = Retry::new(retry)?;
    let pipeline = Pipeline::new().then(retry).classify(ByStatus::new());
    let before = service.stored(patient.name);
    let at_once = (0..30).map(|n| {
        let (pipeline, http) = (&pipeline, &http);
        async move {
            let call = pipeline.call(|| submit(http, address, patient.name, n)).await;
            call.is_ok_and(|answer| answer.status() == StatusCode::CREATED)
        }
    });
    let start = clock.now();
    let created = join_all(at_once).await;
    let stored = service.stored(patient.name) - before;
    let waited = clock.now() - start;
    say(format!(
        "\n  {} submits 30 at once with a quota of 20 per second, and obeys `retry-after`: {stored} stored after {:.1} s",
        patient.name,
        waited.as_secs_f64()
    ))?;
    kept &= stored == 30 && created.iter().all(|created| *created);

    let summary = json!({ "kept": kept, "parts": parts, "patient": { "submitted": 30, "stored": stored } });
    say(format!("\nsummary: {summary}"))?;
    Ok(kept)
}
