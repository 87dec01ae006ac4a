//! The verifier: whose keys, which key, and the fetches.
use std::{
    any::TypeId,
    collections::HashMap,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use bytes::Bytes;
use serde::de::DeserializeOwned;

use super::{
    FetchFailure, Issuer, TokenVerifierConfig, TokenVerifierEvent as Event, Verified, claims,
    discovery::{Fetch, key_set},
    state::{IssuerState, KeyCache, Lookup},
};
use crate::{
    build::{Builder, Common, Component, HasEvents, HasName, debug_fields},
    config::{ConfigError, Name, reconfigurable},
    flight::{Flights, JoinOrLead, Seat},
    observe::{Events, Subscription},
    port::BoxFuture,
    race::{First, race},
    spawn::Spawner,
    sync::{AtomicU64, Mutex},
    time::Clock,
    token::{Compact, TokenReason, TokenRefused, crypto::VerifyKey},
};

/// Verifies tokens of other issuers. The [module's page](super) has the details.
///
/// Clones share their keys and their configuration.
#[derive(Clone)]
pub struct TokenVerifier(Arc<Inner>);

struct Inner {
    settings: Mutex<Arc<Settings>>,
    fetches: Flights<u64, ()>,
    fetch: Fetch,
    clock: Clock,
    name: Option<Name>,
    events: Events<Event>,
    spawner: Spawner,
    /// Number of key caches so far: the key of a fetch. Only the number is taken, hence `Relaxed`.
    caches: AtomicU64,
}

/// The configuration in effect, with the keys of each issuer.
struct Settings {
    config: TokenVerifierConfig,
    issuers: HashMap<String, Arc<Trusted>>,
}

/// An issuer in use.
struct Trusted {
    issuer: Arc<Issuer>,
    name: Name,
    cache: Arc<Cache>,
}

struct Cache {
    number: u64,
    keys: Mutex<KeyCache>,
}

/// Arguments of a verifier, beside name and clock.
pub struct TokenVerifierSpec {
    fetch: Fetch,
    config: TokenVerifierConfig,
    spawner: Spawner,
}

impl Builder<TokenVerifier> {
    /// Sets the spawner of fetches in the background: ahead of time, and those that no caller waits
    /// for any more. By default they are spawned onto the current tokio runtime.
    pub fn spawner(mut self, spawn: impl Fn(BoxFuture<'static, ()>) + Send + Sync + 'static) -> Self {
        self.spec.spawner = Spawner::own(spawn);
        self
    }
}

impl Component for TokenVerifier {
    type Built = Result<Self, ConfigError>;
    type Spec = TokenVerifierSpec;

    fn assemble(spec: TokenVerifierSpec, common: Common) -> Self::Built {
        let TokenVerifierSpec { fetch, config, spawner } = spec;
        let Common { name, clock, hooks, .. } = common;
        config.check()?;
        let inner = Inner {
            settings: Mutex::new(Arc::new(Settings {
                config: TokenVerifierConfig::default(),
                issuers: HashMap::new(),
            })),
            fetches: Flights::finishing(spawner.clone()),
            fetch,
            clock,
            name,
            events: hooks.events(),
            spawner,
            caches: AtomicU64::new(0),
        };
        inner.take(config);
        Ok(Self(Arc::new(inner)))
    }
}

impl HasName for TokenVerifier {}
impl HasEvents<Event> for TokenVerifier {}

reconfigurable!(TokenVerifier, TokenVerifierConfig, |_this, next| next.check());

debug_fields!(TokenVerifier, |this| name: this.0.name, issuers: this.settings().issuers.len());

impl TokenVerifier {
    /// Creates a verifier that gets documents by this function, from an address to the body of a
    /// successful answer.
    ///
    /// # Errors
    /// If a setting breaks its rule.
    pub fn new<F, B, E>(
        fetch: impl Fn(String) -> F + Send + Sync + 'static,
        config: TokenVerifierConfig,
    ) -> Result<Self, ConfigError>
    where
        F: Future<Output = Result<B, E>> + Send + 'static,
        B: Into<Bytes>,
        E: std::fmt::Display,
    {
        Self::builder(fetch, config).build()
    }

    /// Creates a builder with the arguments of [`new`](Self::new).
    ///
    /// Methods of [this builder alone](crate::Builder#impl-Builder%3CTokenVerifier%3E): `spawner`.
    pub fn builder<F, B, E>(
        fetch: impl Fn(String) -> F + Send + Sync + 'static,
        config: TokenVerifierConfig,
    ) -> Builder<Self>
    where
        F: Future<Output = Result<B, E>> + Send + 'static,
        B: Into<Bytes>,
        E: std::fmt::Display,
    {
        let fetch: Fetch = Arc::new(move |address| {
            let document = fetch(address);
            Box::pin(async move { document.await.map(Into::into).map_err(|error| error.to_string()) })
        });
        Builder::new(TokenVerifierSpec { fetch, config, spawner: Spawner::default() })
    }

    /// Verifies a token, and returns its claims.
    ///
    /// A token under a known key is verified at once. Otherwise the call waits for a fetch of the
    /// issuer's keys, at most [`fetch_timeout`](TokenVerifierConfig::fetch_timeout); all calls for
    /// one issuer share it.
    ///
    /// # Errors
    /// The reason for which the token is refused.
    ///
    /// # Cancel safety
    /// Cancel safe: a fetch without callers is finished in the background.
    pub async fn verify<C: DeserializeOwned>(&self, token: &str) -> Result<Verified<C>, TokenRefused> {
        loop {
            let settings = self.settings();
            let mut trusted = None;
            let verified = self.verify_by(&settings, token, &mut trusted).await;
            match &verified {
                // An issuer that was removed during a fetch is not trusted any more.
                Ok(_) if !Arc::ptr_eq(&settings, &self.settings()) => continue,
                Ok(_) => {}
                Err(refused) => {
                    let (issuer, reason) = (trusted.map(|trusted| trusted.name.clone()), refused.reason());
                    self.send(|| Event::Refused { issuer, reason });
                }
            }
            return verified;
        }
    }

    /// Returns the configuration in effect.
    pub fn config(&self) -> TokenVerifierConfig {
        self.settings().config.clone()
    }

    /// Replaces the configuration, also of all clones. An issuer that stays keeps its keys. One
    /// that is added is fetched at its first token, and tokens of one that is removed are refused
    /// from the next call on.
    ///
    /// # Errors
    /// If a setting breaks its rule; then nothing has changed.
    pub fn reconfigure(&self, config: TokenVerifierConfig) -> Result<(), ConfigError> {
        config.check()?;
        self.0.take(config);
        Ok(())
    }

    /// Changes the configuration in effect, as [`reconfigure`](Self::reconfigure) replaces it. Of
    /// concurrent changes none is lost: the function is called again if another one came first.
    ///
    /// # Errors
    /// If a setting breaks its rule; then nothing has changed.
    pub fn update(&self, edit: impl Fn(TokenVerifierConfig) -> TokenVerifierConfig) -> Result<(), ConfigError> {
        loop {
            let before = self.settings();
            let config = edit(before.config.clone());
            config.check()?;
            if self.0.take_if(config, |now| Arc::ptr_eq(now, &before)) {
                return Ok(());
            }
        }
    }

    /// Returns the name.
    pub fn name(&self) -> Option<&str> {
        self.0.name.as_ref().map(Name::as_str)
    }

    /// Returns the state of each issuer, in the order of the configuration.
    pub fn state(&self) -> Vec<IssuerState> {
        let (settings, now) = (self.settings(), self.0.clock.now());
        let states = settings.config.issuers.iter().filter_map(|issuer| settings.issuers.get(&issuer.issuer));
        let state = states.map(|trusted| {
            let keys = trusted.cache.keys.lock();
            IssuerState {
                issuer: trusted.name.clone(),
                keys: keys.len(),
                serves_for: keys.serves_for(now, &settings.config),
                is_away: keys.is_away(),
            }
        });
        state.collect()
    }

    /// Subscribes to the events of the verifier, from now on.
    pub fn events(&self) -> Subscription<Event> {
        self.0.events.subscribe()
    }

    fn settings(&self) -> Arc<Settings> {
        self.0.settings.lock().clone()
    }

    fn send(&self, event: impl FnOnce() -> Event) {
        self.0.events.send(self.0.name.as_ref(), self.0.clock.now(), event);
    }

    async fn verify_by<'a, C: DeserializeOwned>(
        &self,
        settings: &'a Settings,
        token: &str,
        found: &mut Option<&'a Trusted>,
    ) -> Result<Verified<C>, TokenRefused> {
        let Settings { config, issuers } = settings;
        let read = Compact::read(token, config.max_token)?;
        let trusted = &**issuers.get(&claims::issuer_of(&read.payload)?).ok_or(TokenReason::Issuer)?;
        *found = Some(trusted);
        if !trusted.issuer.takes_type(read.typ.as_deref()) {
            return Err(TokenReason::Malformed.into());
        }
        if !trusted.issuer.algorithms.contains(&read.algorithm) {
            return Err(TokenReason::Algorithm.into());
        }
        let key = self.key(trusted, &read, config, true).await?;
        if let Err(wrong) = read.verify(&key) {
            // Without an id, the key is a guess: the issuer may have another one by now.
            if read.kid.is_some() {
                return Err(wrong);
            }
            read.verify(&self.key(trusted, &read, config, false).await?)?;
        }
        let now = self.0.clock.wall();
        claims::check(&read.payload, &trusted.issuer, &trusted.name, now, config.leeway)
    }

    /// Returns the key of a token, after a fetch if it is not known, or if the known one is not
    /// believed.
    async fn key(
        &self,
        trusted: &Trusted,
        token: &Compact<'_>,
        config: &TokenVerifierConfig,
        is_believed: bool,
    ) -> Result<VerifyKey, TokenRefused> {
        let look = || {
            let (kid, now) = (token.kid.as_deref(), self.0.clock.now());
            trusted.cache.keys.lock().lookup(now, kid, token.algorithm, config)
        };
        match look() {
            Lookup::Found { key, refresh } if is_believed => {
                if refresh {
                    self.refresh(trusted, config);
                }
                return Ok(key);
            }
            Lookup::Refused(reason) => return Err(reason.into()),
            Lookup::Found { .. } | Lookup::Unknown | Lookup::Stale => {}
        }
        let waited = match self.fetch(trusted, config) {
            Ok((seat, _)) => {
                self.end(seat, config).await;
                self.wait(trusted, config)
            }
            Err(wait) => wait,
        };
        // If the issuer could not be asked, it may have this key by now.
        let is_current = || trusted.cache.keys.lock().is_current();
        match look() {
            Lookup::Refused(reason) => Err(reason.into()),
            Lookup::Found { key, .. } if is_believed || is_current() => Ok(key),
            Lookup::Unknown if is_current() => Err(TokenReason::Key.into()),
            Lookup::Found { .. } | Lookup::Unknown | Lookup::Stale => Err(TokenRefused::unavailable_for(waited)),
        }
    }

    /// Waits for a fetch, at most for its time limit. A caller that polls it and stalls is
    /// replaced.
    async fn end(&self, mut seat: Seat<u64, ()>, config: &TokenVerifierConfig) {
        let until = self.0.clock.now() + config.fetch_timeout;
        loop {
            let look = (self.0.clock.now() + config.fetch_timeout / 8).min(until);
            // Without a result the user's future panicked, and nothing has changed.
            match race(&mut seat, self.0.clock.sleep_until(look)).await {
                First::One(_) => return,
                First::Other(()) if look == until => return,
                First::Other(()) => seat.take_over(),
            }
        }
    }

    /// Returns the time until the keys may be fetched again.
    fn wait(&self, trusted: &Trusted, config: &TokenVerifierConfig) -> Duration {
        trusted.cache.keys.lock().wait(self.0.clock.now(), config.cooldown)
    }

    /// Fetches the keys in the background, if that is possible.
    fn refresh(&self, trusted: &Trusted, config: &TokenVerifierConfig) {
        if self.0.spawner.is_there()
            && let Ok((seat, true)) = self.fetch(trusted, config)
        {
            self.0.spawner.spawn(async move { drop(seat.await) });
        }
    }

    /// Joins the fetch that is in progress, or begins one, and then returns `true` beside the seat.
    ///
    /// # Errors
    /// The time until one may begin.
    fn fetch(&self, trusted: &Trusted, config: &TokenVerifierConfig) -> Result<(Seat<u64, ()>, bool), Duration> {
        let Inner { fetches, clock, .. } = &*self.0;
        let began = clock.now();
        // Under the lock of the fetches: of many callers one begins, and the others join it.
        let begin = || trusted.cache.keys.lock().begin(began, config.cooldown).err();
        Ok(match fetches.join_or_lead_unless(&trusted.cache.number, TypeId::of::<()>(), begin)? {
            JoinOrLead::Joined(seat) => (seat, false),
            JoinOrLead::Leads(lead) => {
                let (inner, config) = (self.clone(), config.clone());
                let (issuer, name, cache) = (trusted.issuer.clone(), trusted.name.clone(), trusted.cache.clone());
                let seat = lead.start(Box::pin(async move {
                    let fetched = key_set(&inner.0.fetch, &issuer, &config);
                    let set = match race(fetched, inner.0.clock.sleep(config.fetch_timeout)).await {
                        First::One(set) => set,
                        First::Other(()) => Err(FetchFailure::TimedOut),
                    };
                    let event = match set {
                        Ok(set) => {
                            let (keys, left_out) = (set.keys.len(), set.left_out);
                            cache.keys.lock().replace(set, began);
                            Event::KeysFetched { issuer: name, keys, left_out }
                        }
                        Err(why) => {
                            let serves_for = cache.keys.lock().serves_for(inner.0.clock.now(), &config);
                            Event::FetchFailed { issuer: name, why, serves_for }
                        }
                    };
                    inner.send(|| event);
                }));
                (seat, true)
            }
        })
    }
}

impl Inner {
    /// Puts a valid configuration into effect.
    fn take(&self, config: TokenVerifierConfig) {
        self.take_if(config, |_| true);
    }

    /// Puts a valid configuration into effect if the one before is still in effect.
    fn take_if(&self, config: TokenVerifierConfig, is_expected: impl FnOnce(&Arc<Settings>) -> bool) -> bool {
        let mut settings = self.settings.lock();
        if !is_expected(&settings) {
            return false;
        }
        let trusted = config.issuers.iter().map(|issuer| {
            let same = |old: &&Arc<Trusted>| old.issuer.jwks_uri == issuer.jwks_uri;
            let (name, cache) = match settings.issuers.get(&issuer.issuer).filter(same) {
                Some(old) => (old.name.clone(), old.cache.clone()),
                None => {
                    let number = self.caches.fetch_add(1, Relaxed);
                    let cache = Cache { number, keys: Mutex::new(KeyCache::default()) };
                    (Name::from(&issuer.issuer), Arc::new(cache))
                }
            };
            (issuer.issuer.clone(), Arc::new(Trusted { issuer: Arc::new(issuer.clone()), name, cache }))
        });
        let issuers = trusted.collect();
        *settings = Arc::new(Settings { config, issuers });
        true
    }
}
