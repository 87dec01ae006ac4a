//! A stack for each service, over shared base settings.
use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::Arc,
};

use serde::{Deserialize, Deserializer, Serialize, de};

use super::{Standard, StandardConfig};
use crate::{
    build::{Builder, Common, Component, HasEntropy, HasEvents},
    config::{ConfigError, Layer, Name, Reconfigure, apply_newest, reconfigurable, setters},
    sync::Mutex,
    throttling::{Gauges, Reading},
};

/// Settings of a [`StandardRegistry`]: base settings, and those of services that differ.
///
/// In a document, a service's settings are laid over the base: part by part, and within a part
/// setting by setting. A setting is replaced as a whole (`trip = { failure_rate = 0.3 }` drops the
/// base's other rules). `false` switches a part off; `true` switches it on, with the base's
/// settings; JSON's `null` counts as omitted. In code, the settings of a service are complete:
/// start from a clone of the base.
///
/// ```
/// use std::time::Duration;
/// use steadfast::standard::StandardRegistryConfig;
///
/// let config: StandardRegistryConfig = toml::from_str(r#"
///     [base]
///     attempt_timeout = "2s"
///     retry = { max_attempts = 4, max_hint = "10s" }
///
///     [services.payments]
///     retry = { max_attempts = 2 }
///
///     [services.search]
///     attempt_timeout = "200ms"
///     retry = false
/// "#).unwrap();
/// let payments = &config.services["payments"];
/// assert_eq!(payments.attempt_timeout, Some(Duration::from_secs(2)));
/// assert_eq!(payments.retry.unwrap().max_attempts, 2);
/// assert_eq!(payments.retry.unwrap().max_hint, Duration::from_secs(10));
/// assert!(config.services["search"].retry.is_none());
/// ```
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[non_exhaustive]
pub struct StandardRegistryConfig {
    /// Settings of every service without settings of its own.
    pub base: StandardConfig,
    /// Settings of services that differ from the base, by name. None by default.
    pub services: BTreeMap<String, StandardConfig>,
}

setters! {
    impl StandardRegistryConfig {
        base: impl Into<StandardConfig>,
        services: [(String, StandardConfig)],
    }
}

/// The document before services are laid over the base.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
#[derive(Default)]
struct Document {
    base: Layer,
    services: BTreeMap<String, Layer>,
}

/// Depth to which tables of a service and of the base are merged: parts, and their settings.
const LEVELS: u32 = 2;

impl<'de> Deserialize<'de> for StandardRegistryConfig {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let Document { base: layer, services } = Document::deserialize(from)?;
        // The base first: a mistake in it would otherwise be reported as one of a service over it.
        let base = layer.clone().read().map_err(|error| de::Error::custom(error.within("base")))?;
        let services = services.into_iter().map(|(name, own)| {
            let config = own.over(&layer, LEVELS).read();
            config.map_err(|error| error.within(&name).within("services")).map(|config| (name, config))
        });
        let services = services.collect::<Result<_, _>>().map_err(de::Error::custom)?;
        Ok(Self { base, services })
    }
}

impl StandardRegistryConfig {
    fn of(&self, service: &str) -> &StandardConfig {
        self.services.get(service).unwrap_or(&self.base)
    }

    /// Adds the section of the document in which `service` has its settings to an error.
    fn locate(&self, service: &str, error: ConfigError) -> ConfigError {
        match self.services.contains_key(service) {
            true => error.within(service).within("services"),
            false => error.within("base"),
        }
    }

    fn check(&self, gauges: &Gauges) -> Result<(), ConfigError> {
        self.base.check_with(gauges).map_err(|e| e.within("base"))?;
        let mut services = self.services.iter();
        services.try_for_each(|(name, own)| own.check_with(gauges).map_err(|e| e.within(name).within("services")))
    }
}

/// A [`Standard`] stack for each service that a process calls, over shared base settings, from one
/// document. A clone shares its state.
///
/// ```
/// use steadfast::standard::StandardRegistry;
///
/// let services = StandardRegistry::new(toml::from_str(r#"
///     base = { timeout = "5s" }
///     services.search = { timeout = "500ms", retry = false }
/// "#).unwrap()).unwrap();
/// let search = services.get("search").into_pipeline();
/// let payments = services.get("payments").into_pipeline(); // the base's settings
///
/// // A new document holds for all of them at once, while calls run.
/// services.reconfigure(toml::from_str(r#"base = { timeout = "3s" }"#).unwrap()).unwrap();
/// assert!(services.get("search").retry().is_some());
/// ```
#[derive(Clone)]
pub struct StandardRegistry(Arc<RegistryInner>);

struct RegistryInner {
    state: Mutex<RegistryState>,
    common: Common,
    gauges: Gauges,
}

struct RegistryState {
    config: Arc<StandardRegistryConfig>,
    stacks: HashMap<Name, Standard>,
    watchers: Vec<Watcher>,
}

/// A function that sees each stack and its service before the first call through it.
type Watcher = Box<dyn Fn(&str, &Standard) + Send + Sync>;

/// Arguments of a registry, beside clock and entropy.
#[derive(Debug)]
pub struct StandardRegistrySpec {
    config: StandardRegistryConfig,
    gauges: Gauges,
}

impl Builder<StandardRegistry> {
    /// Lets the shedders of all services also watch this gauge, as
    /// [`gauge`](Standard::builder) of one stack does.
    pub fn gauge(mut self, name: impl Into<Name>, gauge: impl Reading) -> Self {
        self.spec.gauges = self.spec.gauges.and(name.into(), gauge);
        self
    }
}

impl Component for StandardRegistry {
    type Built = Result<Self, ConfigError>;
    type Spec = StandardRegistrySpec;

    fn assemble(spec: StandardRegistrySpec, common: Common) -> Self::Built {
        let StandardRegistrySpec { config, gauges } = spec;
        config.check(&gauges)?;
        let state =
            Mutex::new(RegistryState { config: Arc::new(config), stacks: HashMap::new(), watchers: Vec::new() });
        Ok(Self(Arc::new(RegistryInner { state, common, gauges })))
    }
}

impl HasEntropy for StandardRegistry {}
impl<E> HasEvents<E> for StandardRegistry where Standard: HasEvents<E> {}

reconfigurable!(StandardRegistry, StandardRegistryConfig, |this, next| next.check(&this.0.gauges));

impl StandardRegistry {
    /// Creates the registry.
    ///
    /// # Errors
    /// Returns a [`ConfigError`] if a setting is out of range; it names the field by its path in
    /// the document, such as `services.search.retry.max_attempts`.
    pub fn new(config: StandardRegistryConfig) -> Result<Self, ConfigError> {
        Self::builder(config).build()
    }

    /// Creates a builder of the registry.
    ///
    /// Methods of [this builder alone](crate::Builder#impl-Builder%3CStandardRegistry%3E): `gauge`.
    pub fn builder(config: StandardRegistryConfig) -> Builder<Self> {
        Builder::new(StandardRegistrySpec { config, gauges: Gauges::default() })
    }

    /// Returns the stack of `service`, which has that name in errors, events and metrics. The first
    /// call for a name creates the stack; a name without settings of its own has the base's.
    ///
    /// It takes a lock: keep the returned stack, or its pipeline. The registry keeps each stack for
    /// ever, so take names from the code and not from requests; for those there are
    /// [`KeyedBreakers`](crate::circuit_breaker::KeyedBreakers) and
    /// [`KeyedRateLimiter`](crate::throttling::KeyedRateLimiter).
    pub fn get(&self, service: &str) -> Standard {
        let RegistryInner { state, common, gauges } = &*self.0;
        let RegistryState { config, stacks, watchers } = &mut *state.lock();
        let name = Name::from(service);
        let make = || {
            let common = Common { name: Some(name.clone()), ..common.clone() };
            let stack = Standard::make(config.of(service).clone(), gauges.clone(), common);
            watchers.iter().for_each(|watcher| watcher(service, &stack));
            stack
        };
        stacks.entry(name.clone()).or_insert_with(make).clone()
    }

    /// Calls `watcher` with each stack, now or when it is created, under the registry's lock.
    #[cfg_attr(not(feature = "metrics"), allow(dead_code, reason = "used by metrics alone"))]
    pub(crate) fn watch_stacks(&self, watcher: impl Fn(&str, &Standard) + Send + Sync + 'static) {
        let mut state = self.0.state.lock();
        state.stacks.iter().for_each(|(service, stack)| watcher(service.as_str(), stack));
        state.watchers.push(Box::new(watcher));
    }

    /// Returns the current settings.
    pub fn config(&self) -> StandardRegistryConfig {
        StandardRegistryConfig::clone(&self.0.state.lock().config)
    }

    /// Replaces the settings of all services while in use, as [`Standard::reconfigure`] does for
    /// one. A service that is no longer listed gets the base's settings.
    ///
    /// # Errors
    /// As [`new`](Self::new). Nothing has changed then.
    pub fn reconfigure(&self, config: StandardRegistryConfig) -> Result<(), ConfigError> {
        self.validate(&config)?;
        // From now on new stacks take it.
        self.0.state.lock().config = Arc::new(config);
        let newest = || self.0.state.lock().config.clone();
        apply_newest(newest, |config| {
            let stacks = self.0.state.lock().stacks.clone();
            stacks.iter().try_for_each(|(name, stack)| {
                stack.reconfigure(config.of(name.as_str()).clone()).map_err(|e| config.locate(name.as_str(), e))
            })
        })
    }
}

impl fmt::Debug for StandardRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.state.lock();
        f.debug_map().entries(&state.stacks).finish()
    }
}
