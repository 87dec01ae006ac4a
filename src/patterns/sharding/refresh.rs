//! Background refresh of the map: by notices and by polling.
use std::{future::Future, pin::pin, time::Duration};

use super::ShardDirectory;
use crate::{
    notify::Hints,
    race::{First, race},
    time::scaled,
};

impl ShardDirectory {
    /// Keeps this process's copy of the map fresh until `shutdown` completes. It reads the map at
    /// each notice, and every [`refresh_interval`](super::ShardDirectoryConfig::refresh_interval),
    /// give or take a fifth. Without this, a copy is refreshed only when a shard refuses a request,
    /// which a [`FanOut`](super::FanOut) over too few shards would not notice.
    ///
    /// # Cancel safety
    /// Dropping the future ends the refreshes.
    pub async fn run(&self, shutdown: impl Future<Output = ()>) {
        let mut shutdown = pin!(shutdown);
        let mut hints = Hints::new(Duration::ZERO);
        loop {
            if let First::One(()) = race(shutdown.as_mut(), self.subscribe(&mut hints)).await {
                return;
            }
            let pause = scaled(self.0.config.refresh_interval, 0.8 + 0.4 * self.0.entropy.unit());
            let heard = hints.recv(&self.0.clock, Duration::ZERO, |_| true);
            if let First::One(()) = race(shutdown.as_mut(), race(heard, self.0.clock.sleep(pause))).await {
                return;
            }
            // A failure is an event; the previous copy stays in use.
            if let First::One(()) = race(shutdown.as_mut(), self.refresh()).await {
                return;
            }
        }
    }

    async fn subscribe(&self, hints: &mut Hints) {
        let timing = (&self.0.clock, self.0.config.refresh_interval);
        // Without a subscription, the map is polled until the next attempt.
        let _ = hints.subscribe(self.0.notifier.as_ref(), &self.0.topic, timing).await;
    }
}
