//! A service that trusts several identity providers, while one of them rotates its keys, lies, is flooded, and is away.
//!
//! Providers and service are HTTP servers on loopback; the time of the verifier is a manual clock, so that an hour takes
//! a moment. The last line is the result as JSON; the exit code is 0 if no token was judged wrongly.
#![allow(missing_docs, reason = "a program has no readers from outside")]
mod common;

use std::{
    net::SocketAddr,
    process::ExitCode,
    sync::{Arc, OnceLock},
    time::Duration,
};

use common::{Answer, Http, Result, answer, end, no_arguments, say, serve};
use hyper::{HeaderMap, body::Bytes};
use serde_json::{Value, json};
use steadfast::{
    federated_identity::{Issuer, TokenVerifier, TokenVerifierConfig},
    http::{bearer, token_answer},
    testing::{IdentityProvider, ManualClock, ProviderMood},
    time::{Clock, Timestamp},
    token::{Algorithm, TokenRefused},
};

const S: fn(u64) -> Duration = Duration::from_secs;
/// Seconds since 1970 at which the run begins.
const START: u64 = 1_800_000_000;

#[tokio::main]
async fn main() -> ExitCode {
    no_arguments("Verifies tokens of several identity providers that rotate, lie, are flooded, and are away.");
    end(show().await)
}

/// An identity provider behind HTTP.
struct Provider {
    issuer: String,
    idp: IdentityProvider,
}

impl Provider {
    async fn start() -> Result<Self> {
        let cell: Arc<OnceLock<IdentityProvider>> = Arc::default();
        let served = cell.clone();
        let address = serve(move |request| {
            let (idp, url) = (served.get().cloned(), request.uri().path().to_owned());
            async move {
                let Some(idp) = idp else { return answer(503, "not ready") };
                match idp.fetch(url).await {
                    Ok(document) => Answer::new(Bytes::from(document)),
                    Err(error) => answer(503, error),
                }
            }
        })
        .await?;
        let issuer = format!("http://{address}");
        let idp = cell.get_or_init(|| IdentityProvider::new(issuer.clone())).clone();
        Ok(Self { issuer, idp })
    }

    fn trusted(&self) -> Issuer {
        Issuer::oidc(&self.issuer).audience("shop").algorithms([Algorithm::Es256])
    }

    fn claims(&self, edits: &[(&str, Value)]) -> Value {
        let mut claims = json!({
            "iss": self.issuer, "aud": "shop", "sub": "ada", "exp": START + 1_000_000, "scope": "orders:write"
        });
        for (name, value) in edits {
            claims[*name] = value.clone();
        }
        claims
    }

    fn good(&self) -> String {
        self.idp.token(&self.claims(&[]))
    }

    /// Tokens of this provider, of which none may be accepted.
    fn bad(&self, other: &Self) -> Vec<String> {
        let header = json!({ "alg": "ES256", "kid": "key-1" });
        let good = self.good();
        let (signed, _) = good.rsplit_once('.').unwrap_or_default();
        vec![
            self.idp.token(&self.claims(&[("aud", json!("bank"))])),
            self.idp.token(&self.claims(&[("exp", json!(START - 60))])),
            self.idp.token(&self.claims(&[("nbf", json!(START + 900_000))])),
            self.idp.token(&self.claims(&[("sub", Value::Null)])),
            self.idp.token(&self.claims(&[("iss", json!(other.issuer))])),
            self.idp.sign(&json!({ "alg": "none" }), &self.claims(&[])),
            self.idp.sign(&json!({ "alg": "HS256", "kid": "key-1" }), &self.claims(&[])),
            other.idp.sign(&header, &self.claims(&[])),
            format!("{signed}."),
        ]
    }
}

/// The service, and what it answered.
struct Service {
    address: SocketAddr,
    http: Http,
    time: ManualClock,
    tokens: u64,
    accepted: u64,
    wrongly_accepted: u64,
    wrongly_refused: u64,
    unavailable: u64,
}

impl Service {
    async fn start(verifier: TokenVerifier, time: ManualClock) -> Result<Self> {
        let address = serve(move |request| {
            let verifier = verifier.clone();
            async move {
                let headers = request.headers().clone();
                let judged: std::result::Result<(), TokenRefused> = async {
                    let who = verifier.verify::<Value>(bearer(&headers)?).await?;
                    who.require_scope("orders:write")
                }
                .await;
                judged.map_or_else(|refused| token_answer(&refused), |()| answer(200, "ordered"))
            }
        })
        .await?;
        let (http, zero) = (Http::new(), 0);
        Ok(Self {
            address,
            http,
            time,
            tokens: zero,
            accepted: zero,
            wrongly_accepted: zero,
            wrongly_refused: zero,
            unavailable: zero,
        })
    }

    async fn status(&mut self, token: &str) -> Result<u16> {
        self.tokens += 1;
        let mut headers = HeaderMap::new();
        headers.insert("authorization", format!("Bearer {token}").parse()?);
        let status = self.http.get_with(self.address, "/orders", headers).await?.status().as_u16();
        self.accepted += u64::from(status == 200);
        self.unavailable += u64::from(status == 503);
        Ok(status)
    }

    async fn accepts(&mut self, token: &str) -> Result<()> {
        let status = self.status(token).await?;
        self.wrongly_refused += u64::from(status != 200);
        Ok(())
    }

    async fn refuses(&mut self, token: &str) -> Result<()> {
        let status = self.status(token).await?;
        self.wrongly_accepted += u64::from(status == 200);
        // A wrong token is not a failure of the issuer.
        self.wrongly_refused += u64::from(status != 401);
        Ok(())
    }
}

async fn show() -> Result<(Value, bool)> {
    let (clock, time) = Clock::manual();
    time.set_wall(Timestamp::from_millis(START * 1000));
    let (a, b, c) = (Provider::start().await?, Provider::start().await?, Provider::start().await?);
    let client = Http::new();
    let fetch = move |url: String| {
        let client = client.clone();
        async move {
            let (server, path) = url.trim_start_matches("http://").split_once('/').unwrap_or_default();
            let got = client.get(server.parse()?, &format!("/{path}")).await?;
            if got.status() == 200 { Ok(got.into_body()) } else { Err(format!("status {}", got.status()).into()) }
        }
    };
    let fetch = move |url| {
        let document = fetch(url);
        async move { document.await.map_err(|error: common::Failure| error.to_string()) }
    };
    // Time is advanced while keys are fetched in the background: by 10 s for each two requests.
    let config = TokenVerifierConfig::default().fetch_timeout(S(29)).issuer(a.trusted()).issuer(b.trusted());
    let verifier = TokenVerifier::builder(fetch, config).name("shop").clock(&clock).build()?;
    let mut service = Service::start(verifier.clone(), time.clone()).await?;

    for (one, other) in [(&a, &b), (&b, &a)] {
        service.accepts(&one.good()).await?;
        for bad in one.bad(other) {
            service.refuses(&bad).await?;
        }
    }
    say("two tenants: each good token is accepted, and none of the bad ones");

    service.refuses(&c.good()).await?;
    verifier.update(|config| config.issuer(c.trusted()))?;
    service.accepts(&c.good()).await?;
    say("a tenant is added in use");

    let old = a.good();
    for _ in 0..3 {
        service.time.advance(S(60));
        a.idp.rotate();
        service.accepts(&a.good()).await?;
        service.accepts(&old).await?;
    }
    say("an issuer rotates its keys: the first token of each is accepted");

    service.time.advance(S(60));
    let before = a.idp.fetches();
    let unknown = |n: u64| a.idp.sign(&json!({ "alg": "ES256", "kid": format!("flood {n}") }), &a.claims(&[]));
    let (good_a, good_b) = (a.good(), b.good());
    for n in 0..10_000 {
        service.time.advance(S(60) / 10_000);
        service.refuses(&unknown(n)).await?;
        if n % 100 == 0 {
            service.accepts(&good_a).await?;
            service.accepts(&good_b).await?;
        }
    }
    let flood_fetches = a.idp.fetches() - before;
    say(format!("10,000 tokens under unknown keys in a minute: {flood_fetches} fetches"));

    for mood in [ProviderMood::Empty, ProviderMood::Lies, ProviderMood::Garbage, ProviderMood::Huge] {
        a.idp.is(mood);
        service.time.advance(S(30));
        // The key may be a new one, which the issuer has not told.
        let status = service.status(&unknown(0)).await?;
        service.wrongly_accepted += u64::from(status == 200);
        service.wrongly_refused += u64::from(status != 503);
        service.accepts(&good_a).await?;
    }
    say("an issuer lies: its keys stay as they were, and unknown ones are answered by 503");

    // A fetch that succeeds for sure, from which the age of the keys counts.
    a.idp.is(ProviderMood::Serves);
    service.time.advance(S(30));
    service.refuses(&unknown(1)).await?;
    a.idp.is(ProviderMood::Fails);
    for _ in 0..300 {
        service.time.advance(S(10));
        service.accepts(&good_a).await?;
        service.accepts(&good_b).await?;
    }
    say("it is away for 50 min: its tokens are accepted");
    let was_unavailable = service.unavailable;
    service.time.advance(S(600));
    for _ in 0..20 {
        service.time.advance(S(10));
        service.status(&good_a).await?;
        service.accepts(&good_b).await?;
    }
    let unavailable = service.unavailable - was_unavailable;
    a.idp.is(ProviderMood::Serves);
    service.time.advance(S(30));
    service.accepts(&good_a).await?;
    say(format!("beyond an hour: {unavailable} of 20 are answered by 503, and it is back at once"));

    let fetches = a.idp.fetches() + b.idp.fetches() + c.idp.fetches();
    let Service { tokens, accepted, wrongly_accepted, wrongly_refused, .. } = service;
    let holds = (wrongly_accepted, wrongly_refused) == (0, 0)
        && flood_fetches <= 3
        && (was_unavailable, unavailable) == (4, 20);
    let summary = json!({
        "tokens": tokens, "accepted": accepted, "wrongly_accepted": wrongly_accepted, "wrongly_refused": wrongly_refused,
        "fetches": fetches, "flood_fetches": flood_fetches, "unavailable": unavailable,
    });
    Ok((summary, holds))
}
