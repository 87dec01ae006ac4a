//! Replacing the configuration of a component in use: first validated, then applied.
use std::sync::Arc;

use super::ConfigError;

/// Component whose configuration, of type `C`, can be replaced while it is in use.
///
/// Every component with a method `reconfigure` implements it, and a service may implement it for
/// parts of its own. A change of several parts is all or nothing: each part validates its section
/// before any part applies one.
///
/// ```
/// use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
/// use steadfast::{
///     ConfigError,
///     config::{Effect, Reconfigure},
///     retry::{Retry, RetryConfig},
/// };
///
/// /// A part of the service's own.
/// struct Workers(AtomicU32);
///
/// impl Reconfigure<u32> for Workers {
///     fn config(&self) -> u32 {
///         self.0.load(Relaxed)
///     }
///     fn validate(&self, next: &u32) -> Result<Effect, ConfigError> {
///         match next {
///             0 => Err(ConfigError::new("workers", "must be at least 1")),
///             _ => Ok(Effect::of_change(&self.config(), next)),
///         }
///     }
///     fn apply(&self, next: u32) -> Result<(), ConfigError> {
///         self.validate(&next)?;
///         self.0.store(next, Relaxed);
///         Ok(())
///     }
/// }
///
/// let (retry, workers) = (Retry::new(RetryConfig::default())?, Workers(AtomicU32::new(4)));
/// let reload = |retries: RetryConfig, number: u32| -> Result<(), ConfigError> {
///     retry.validate(&retries).map_err(|e| e.within("retry"))?;
///     workers.validate(&number)?;
///     retry.apply(retries)?;
///     workers.apply(number)
/// };
///
/// reload(RetryConfig::default().max_attempts(5), 8)?;
/// assert_eq!((retry.config().max_attempts, workers.config()), (5, 8));
///
/// // One invalid section, and nothing has changed.
/// let error = reload(RetryConfig::default().max_attempts(7), 0).unwrap_err();
/// assert_eq!(error.to_string(), "invalid `workers`: must be at least 1");
/// assert_eq!((retry.config().max_attempts, workers.config()), (5, 8));
/// # Ok::<_, ConfigError>(())
/// ```
///
/// The trait is object-safe: `Arc<dyn Reconfigure<C>>` is a part whose type is not known.
///
/// # For implementors
///
/// 1. [`config`](Self::config) returns the configuration in effect. Applied again, it restores the
///    settings, which is how a change is undone.
/// 2. [`validate`](Self::validate) changes nothing. Its error and its effect hold as long as the
///    configuration in effect stays the same.
/// 3. [`apply`](Self::apply) validates again. If it returns an error, nothing has changed. It
///    succeeds if `validate` returned [`Unchanged`](Effect::Unchanged) or
///    [`InPlace`](Effect::InPlace), as far as the component itself decides; a part that calls
///    another system may fail.
pub trait Reconfigure<C> {
    /// Returns the configuration in effect.
    fn config(&self) -> C;

    /// Returns the effect that [`apply`](Self::apply) would have, without changing anything.
    ///
    /// # Errors
    /// The error for the first invalid setting, with the field and the rule.
    fn validate(&self, next: &C) -> Result<Effect, ConfigError>;

    /// Replaces the configuration. All clones of the component take the new one.
    ///
    /// # Errors
    /// If a setting is invalid, or the change needs a [restart](Effect::Restart). Nothing has
    /// changed then.
    fn apply(&self, next: C) -> Result<(), ConfigError>;
}

impl<C, R: Reconfigure<C> + ?Sized> Reconfigure<C> for Arc<R> {
    fn config(&self) -> C {
        (**self).config()
    }
    fn validate(&self, next: &C) -> Result<Effect, ConfigError> {
        (**self).validate(next)
    }
    fn apply(&self, next: C) -> Result<(), ConfigError> {
        (**self).apply(next)
    }
}

/// Effect of a valid change of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Effect {
    /// The configuration is the one in effect.
    Unchanged,
    /// The change is applied while the component is in use.
    InPlace,
    /// The configuration is valid, but only for a new component. The error names the setting that
    /// cannot change in use; [`apply`](Reconfigure::apply) returns it.
    Restart(ConfigError),
}

impl Effect {
    /// Returns [`Unchanged`](Self::Unchanged) if the two are equal, else
    /// [`InPlace`](Self::InPlace).
    pub fn of_change<C: PartialEq>(now: &C, next: &C) -> Self {
        if now == next { Self::Unchanged } else { Self::InPlace }
    }
}

/// Implements [`Reconfigure`] for a component with its own methods `config` and `reconfigure`. The
/// expression checks a configuration against the component. `reconfigure` calls `validate`, so that
/// the rules are in one place.
macro_rules! reconfigurable {
    ([$($generics:tt)*] $component:ty, $config:ty, |$this:ident, $next:ident| $check:expr) => {
        impl<$($generics)*> $crate::config::Reconfigure<$config> for $component {
            fn config(&self) -> $config {
                // The component's own method, which precedes that of the trait.
                self.config()
            }

            fn validate(&self, $next: &$config) -> Result<$crate::config::Effect, $crate::config::ConfigError> {
                let $this = self;
                $check?;
                Ok($crate::config::Effect::of_change(&$this.config(), $next))
            }

            fn apply(&self, next: $config) -> Result<(), $crate::config::ConfigError> {
                self.reconfigure(next)
            }
        }
    };
    ($component:ty, $config:ty, |$this:ident, $next:ident| $check:expr) => {
        $crate::config::reconfigurable!([] $component, $config, |$this, $next| $check);
    };
}
pub(crate) use reconfigurable;
