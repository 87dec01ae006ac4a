//! The settings of a retry while it is in use.
//
// Two copies of the settings. `config`, under a lock, is the whole; only failed attempts read it.
// `live` is one word with the parts that each call reads, so that a success takes no lock.
//
// Invariant: `live` is stored only while the lock is held, after `config`, so the last change wins
// in both. `Relaxed` suffices: the word is complete in itself and publishes no other data. A call
// may read the old word just before a change and the new `config` after its first failure: the page
// documents that a call in flight follows the new settings from its next failure on.
//
// Layout of the word, from the lowest bit: 16 bits of `Repeats`, `retry_nested`, `idempotent`,
// `max_elapsed` is set.
use std::sync::atomic::{AtomicU32, Ordering};

use super::RetryConfig;
use crate::{call::Repeats, sync::Mutex};

/// The settings, which may change while in use. Only failed attempts take the lock.
pub(super) struct RetrySettings {
    config: Mutex<RetryConfig>,
    /// The settings that a successful call needs, packed as [`Live`].
    live: AtomicU32,
}

/// The settings that every call reads, in one word.
#[derive(Clone, Copy)]
pub(super) struct Live {
    /// Failures that the retry repeats if the operation may run twice.
    pub(super) repeats: Repeats,
    /// `true` if it repeats inside another retry.
    pub(super) nested: bool,
    /// `true` if it treats unmarked operations as idempotent.
    pub(super) assumes: bool,
    /// `true` if the total time is limited.
    pub(super) timed: bool,
}

impl Live {
    fn bits(config: &RetryConfig) -> u32 {
        let repeats = match config.max_attempts {
            1 => Repeats::NOTHING,
            _ => Repeats::new(config.retry_on, config.retry_rejections),
        };
        u32::from(repeats.to_bits())
            | u32::from(config.retry_nested) << 16
            | u32::from(config.idempotent) << 17
            | u32::from(config.max_elapsed.is_some()) << 18
    }
}

impl RetrySettings {
    pub(super) fn new(config: RetryConfig) -> Self {
        Self { config: Mutex::new(config), live: AtomicU32::new(Live::bits(&config)) }
    }

    pub(super) fn get(&self) -> RetryConfig {
        *self.config.lock()
    }

    pub(super) fn set(&self, config: RetryConfig) {
        let mut current = self.config.lock();
        *current = config;
        self.live.store(Live::bits(&config), Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn live(&self) -> Live {
        let bits = self.live.load(Ordering::Relaxed);
        let repeats = Repeats::from_bits(bits as u16);
        let is = |bit: u32| bits & 1 << bit != 0;
        Live { repeats, nested: is(16), assumes: is(17), timed: is(18) }
    }
}
