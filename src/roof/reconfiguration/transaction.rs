//! A change of several parts: all of it, or none. It knows neither async nor time.
use crate::config::{ConfigError, Effect};

/// One part of the settings `S`, and whatever is configured by it.
pub(super) trait Part<S>: Send + Sync {
    /// Returns the name.
    fn name(&self) -> &str;

    /// Returns `true` if its section differs.
    fn differs(&self, one: &mut S, other: &mut S) -> bool;

    /// Replaces its section of `into` by that of `from`.
    fn copy(&self, from: &mut S, into: &mut S);

    /// Returns the effect that these settings would have. A panic is a refusal.
    fn validate(&self, settings: &mut S) -> Result<Effect, ConfigError>;

    /// Applies its section of these settings. A panic is a failure.
    fn apply(&self, settings: &mut S) -> Result<(), ConfigError>;
}

/// The reason for which a change is refused. Nothing has changed.
#[derive(Debug)]
pub(super) enum Refusal {
    /// A part refuses its section.
    Vetoed(usize, ConfigError),
    /// A part can take its section only when it starts.
    NeedsRestart(usize, ConfigError),
    /// Something outside of all parts has changed.
    Undeclared,
}

/// The end of a change that failed while it was applied.
#[derive(Debug)]
pub(super) struct Failed {
    /// The part that failed.
    pub(super) part: usize,
    pub(super) error: ConfigError,
    /// The parts that could not be given back their old settings.
    pub(super) left: Vec<(usize, ConfigError)>,
}

/// Returns the parts whose sections change, in their order.
///
/// # Errors
/// One part refuses, or the change goes beyond the parts. `suspects` are the parts that may run
/// something else than `now`: they count as changed.
pub(super) fn plan<S: Clone + PartialEq>(
    parts: &[&dyn Part<S>],
    suspects: &[usize],
    now: &S,
    next: &S,
) -> Result<Vec<usize>, Refusal> {
    let (mut now, mut next) = (now.clone(), next.clone());
    let is_changed = |part: &usize, now: &mut S, next: &mut S| {
        suspects.contains(part) || parts.get(*part).is_some_and(|part| part.differs(now, next))
    };
    let changed: Vec<usize> = (0..parts.len()).filter(|part| is_changed(part, &mut now, &mut next)).collect();
    for (at, part) in changed.iter().filter_map(|at| Some((*at, parts.get(*at)?))) {
        match part.validate(&mut next) {
            Ok(Effect::Restart(error)) => return Err(Refusal::NeedsRestart(at, error)),
            Ok(_) => {}
            Err(error) => return Err(Refusal::Vetoed(at, error)),
        }
    }
    // With each section put back nothing may differ.
    for part in parts {
        part.copy(&mut now, &mut next);
    }
    if next == now { Ok(changed) } else { Err(Refusal::Undeclared) }
}

/// Applies a change that was planned. If a part fails, those before it get `now` back, in reverse.
///
/// # Errors
/// The failure, with the parts that are left with the new settings.
pub(super) fn apply<S: Clone>(parts: &[&dyn Part<S>], changed: &[usize], now: &S, next: &S) -> Result<(), Failed> {
    let mut next = next.clone();
    for (done, at) in changed.iter().enumerate() {
        let Some(part) = parts.get(*at) else { continue };
        if let Err(error) = part.apply(&mut next) {
            let left = undo(parts, changed.get(..done).unwrap_or_default(), now);
            return Err(Failed { part: *at, error, left });
        }
    }
    Ok(())
}

/// Gives these parts back their sections of `settings`, in reverse. Returns those that fail.
pub(super) fn undo<S: Clone>(parts: &[&dyn Part<S>], changed: &[usize], settings: &S) -> Vec<(usize, ConfigError)> {
    let mut settings = settings.clone();
    let back = changed.iter().rev().filter_map(|at| Some((*at, parts.get(*at)?.apply(&mut settings).err()?)));
    back.collect()
}
