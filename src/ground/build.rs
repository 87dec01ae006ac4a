//! The builder of all components: a component is built, then shared, then reconfigured.

use crate::{
    config::Name,
    entropy::Entropy,
    observe::{Event, Hooks},
    time::Clock,
};

/// Builder of a component, from the component's `builder`, which takes the same arguments as its
/// `new`.
///
/// Some components have further methods: on this page, in a block of the component such as
/// [`impl Builder<Retry>`](#impl-Builder%3CRetry%3E). Several components have one of the same name,
/// say `notifier`, so [`builder`](crate::retry::Retry::builder) of a component lists its own and
/// leads to their block.
///
/// Name, clock and the other arguments beside the configuration are fixed from then on: clones
/// share them, with all state. A component with a method `reconfigure` takes another configuration
/// while it is in use, as the trait [`Reconfigure`](crate::config::Reconfigure) also offers: all
/// policies around calls, limits and breakers, [`Standard`](crate::standard::Standard) and its
/// registry, [`CacheAside`](crate::cache_aside::CacheAside),
/// [`QueueListener`](crate::queue_listener::QueueListener),
/// [`Journal`](crate::journal::Journal), [`Saga`](crate::saga::Saga),
/// [`Scheduler`](crate::scheduler::Scheduler),
/// [`StreamProcessor`](crate::stream::StreamProcessor) and [`Health`](crate::health::Health). A
/// setting that cannot change in use is refused, with its name. The others keep the configuration
/// that they were built with: [`LeaderElection`](crate::leader_election::LeaderElection), whose
/// terms its nodes rely on, shard directories, claim checks, and the engines.
///
/// ```
/// use std::time::Duration;
/// use steadfast::{
///     circuit_breaker::{CircuitBreaker, CircuitBreakerConfig},
///     entropy::Entropy,
///     time::Clock,
/// };
///
/// # fn main() -> Result<(), steadfast::ConfigError> {
/// // With the defaults:
/// let breaker = CircuitBreaker::new(CircuitBreakerConfig::default())?;
///
/// // With a name for errors, events and metrics; in a test also with its own time and randomness:
/// let (clock, time) = Clock::manual();
/// let breaker = CircuitBreaker::builder(CircuitBreakerConfig::default())
///     .name("payments")
///     .clock(&clock)
///     .entropy(&Entropy::from_seed(1))
///     .build()?;
/// time.advance(Duration::from_secs(1));
/// assert_eq!(breaker.name(), Some("payments"));
/// # Ok(())
/// # }
/// ```
#[must_use = "a builder builds nothing before `build`"]
pub struct Builder<X: Component> {
    pub(crate) spec: X::Spec,
    pub(crate) common: Common,
}

/// Component that a [`Builder`] builds. No type outside this crate can be one.
pub trait Component: Sized {
    /// Result of [`Builder::build`]: the component, or a `Result` if a setting can be invalid.
    type Built;

    #[doc(hidden)]
    type Spec;

    #[doc(hidden)]
    fn assemble(spec: Self::Spec, common: Common) -> Self::Built;
}

/// Component with a name of its own. Those whose `new` takes a name have no second one.
pub trait HasName: Component {}

/// Component that draws random numbers.
pub trait HasEntropy: Component {}

/// Component with events of type `E`, or made of components with such events.
pub trait HasEvents<E>: Component {}

/// Arguments of every component: name, clock, randomness and hooks.
#[derive(Debug, Clone, Default)]
pub struct Common {
    pub(crate) name: Option<Name>,
    pub(crate) clock: Clock,
    pub(crate) entropy: Option<Entropy>,
    pub(crate) hooks: Hooks,
}

impl Common {
    /// Returns the source of randomness, or one that the system has seeded.
    pub(crate) fn entropy(&self) -> Entropy {
        self.entropy.clone().unwrap_or_default()
    }
}

impl<X: Component> Builder<X> {
    pub(crate) fn new(spec: X::Spec) -> Self {
        Self { spec, common: Common::default() }
    }

    /// Sets the clock. tokio's by default.
    pub fn clock(mut self, clock: &Clock) -> Self {
        self.common.clock = clock.clone();
        self
    }

    /// Calls `hook` with each event of type `E`, where it is sent. Several hooks run in the order
    /// in which they were added.
    ///
    /// The hook runs inside the call that sends the event, so it must be quick; its panic is
    /// caught. A [subscription](crate::observe::Subscription) is the way for everything else: see
    /// [`observe`](crate::observe).
    ///
    /// ```
    /// use steadfast::{observe::Event, retry::{Retry, RetryConfig, RetryEvent}};
    ///
    /// let retry = Retry::builder(RetryConfig::default())
    ///     .name("search")
    ///     .on_event(|event: &Event<RetryEvent>| match &event.what {
    ///         RetryEvent::GaveUp { attempts, .. } => eprintln!("{attempts} attempts"),
    ///         _ => {}
    ///     })
    ///     .build();
    /// # retry.unwrap();
    /// ```
    pub fn on_event<E: 'static>(mut self, hook: impl Fn(&Event<E>) + Send + Sync + 'static) -> Self
    where
        X: HasEvents<E>,
    {
        self.common.hooks.add(hook);
        self
    }

    /// Builds the component.
    ///
    /// # Errors
    /// Returns a [`ConfigError`](crate::ConfigError) with the name of the field if a setting is
    /// invalid, or if a backend lacks a capability that the component needs. A component without
    /// such settings is returned as it is.
    pub fn build(self) -> X::Built {
        X::assemble(self.spec, self.common)
    }
}

impl<X: HasName> Builder<X> {
    /// Sets the name that errors, events and metrics carry.
    pub fn name(mut self, name: impl Into<Name>) -> Self {
        self.common.name = Some(name.into());
        self
    }
}

impl<X: HasEntropy> Builder<X> {
    /// Sets the source of randomness. Seeded by the system by default.
    pub fn entropy(mut self, entropy: &Entropy) -> Self {
        self.common.entropy = Some(entropy.clone());
        self
    }
}

/// Implements `Debug` by these fields, each with an expression over the value, and `..` for the
/// others. The parameters of a generic type come first, as in
/// `debug_fields!([K: Hash] Keys<K>, |this| len: this.len())`.
macro_rules! debug_fields {
    ($([$($generics:tt)*])? $name:ident $(<$($parameter:ident),*>)?, |$this:ident| $($field:ident: $value:expr),*) => {
        impl$(<$($generics)*>)? std::fmt::Debug for $name$(<$($parameter),*>)? {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let $this = self;
                f.debug_struct(stringify!($name))$(.field(stringify!($field), &$value))*.finish_non_exhaustive()
            }
        }
    };
}
pub(crate) use debug_fields;

debug_fields!([X: Component] Builder<X>, |this| common: this.common);
