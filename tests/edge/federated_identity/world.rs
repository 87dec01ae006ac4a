//! A verifier of two tenants on a manual clock.
use std::{sync::Arc, sync::Mutex, time::Duration};

use serde_json::{Value, json};
use steadfast::{
    federated_identity::{Issuer, TokenVerifier, TokenVerifierConfig, TokenVerifierEvent, Verified},
    observe::Subscription,
    port::BoxFuture,
    testing::{IdentityProvider, ManualClock},
    time::{Clock, Timestamp},
    token::{Algorithm, TokenReason, TokenRefused},
};

pub(crate) const A: &str = "https://a.example";
pub(crate) const B: &str = "https://b.example";
pub(crate) const S: fn(u64) -> Duration = Duration::from_secs;
/// Seconds since 1970 at which each test begins.
pub(crate) const START: u64 = 1_800_000_000;

pub(crate) type Spawned = Arc<Mutex<Vec<BoxFuture<'static, ()>>>>;

pub(crate) struct World {
    pub(crate) time: ManualClock,
    pub(crate) clock: Clock,
    pub(crate) a: IdentityProvider,
    pub(crate) b: IdentityProvider,
    pub(crate) verifier: TokenVerifier,
    /// Fetches in the background, which a test runs.
    pub(crate) spawned: Spawned,
    /// Time that each document takes.
    takes: Arc<Mutex<Duration>>,
}

pub(crate) fn issuer(name: &str) -> Issuer {
    Issuer::oidc(name).audience("shop").algorithms([Algorithm::Es256, Algorithm::Rs256, Algorithm::EdDsa])
}

pub(crate) fn claims(issuer: &str) -> Value {
    json!({ "iss": issuer, "aud": "shop", "sub": "ada", "exp": START + 1_000_000, "scope": "orders:read orders:write" })
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(|config| config)
    }

    pub(crate) fn with(edit: impl FnOnce(TokenVerifierConfig) -> TokenVerifierConfig) -> Self {
        let (clock, time) = Clock::manual();
        time.set_wall(Timestamp::from_millis(START * 1000));
        let (a, b) = (IdentityProvider::new(A), IdentityProvider::new(B));
        let config = edit(TokenVerifierConfig::default().issuer(issuer(A)).issuer(issuer(B)));
        let (spawned, providers) = (Spawned::default(), [a.clone(), b.clone()]);
        let takes = Arc::<Mutex<Duration>>::default();
        let (timer, slow) = (clock.clone(), takes.clone());
        let fetch = move |url: String| {
            let provider = providers.iter().find(|provider| url.starts_with(provider.issuer())).cloned();
            let (timer, takes) = (timer.clone(), *slow.lock().unwrap());
            async move {
                if !takes.is_zero() {
                    timer.sleep(takes).await;
                }
                provider.expect("an issuer of the test").fetch(url).await
            }
        };
        let queue = spawned.clone();
        let verifier = TokenVerifier::builder(fetch, config)
            .name("shop")
            .clock(&clock)
            .spawner(move |work| queue.lock().unwrap().push(work))
            .build()
            .unwrap();
        Self { time, clock, a, b, verifier, spawned, takes }
    }

    /// Lets each document take so long.
    pub(crate) fn slow(&self, takes: Duration) {
        *self.takes.lock().unwrap() = takes;
    }

    pub(crate) fn verify(&self, token: &str) -> Result<Verified<Value>, TokenRefused> {
        self.time.block_on(self.verifier.verify(token))
    }

    pub(crate) fn reason(&self, token: &str) -> TokenReason {
        self.verify(token).unwrap_err().reason()
    }

    /// Runs the fetches in the background, and returns their number.
    pub(crate) fn run_spawned(&self) -> usize {
        let work = std::mem::take(&mut *self.spawned.lock().unwrap());
        let number = work.len();
        work.into_iter().for_each(|work| self.time.block_on(work));
        number
    }
}

pub(crate) fn told(events: &mut Subscription<TokenVerifierEvent>) -> Vec<TokenVerifierEvent> {
    std::iter::from_fn(|| events.try_recv().unwrap()).map(|event| event.what).collect()
}
