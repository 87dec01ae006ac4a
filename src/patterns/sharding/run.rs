//! Background refresh of the map: by notices and by polling.
use std::{future::Future, pin::pin};

use super::ShardDirectory;
use crate::{
    notify::Notices,
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
        let mut notices = None;
        loop {
            if notices.is_none() {
                match race(shutdown.as_mut(), self.subscribed()).await {
                    First::One(()) => return,
                    First::Other(subscribed) => notices = subscribed,
                }
            }
            let pause = scaled(self.0.config.refresh_interval, 0.8 + 0.4 * self.0.entropy.unit());
            let heard = async {
                match &mut notices {
                    Some(notices) => {
                        notices.recv().await;
                    }
                    None => std::future::pending().await,
                }
            };
            if let First::One(()) = race(shutdown.as_mut(), race(heard, self.0.clock.sleep(pause))).await {
                return;
            }
            // A failure is an event; the previous copy stays in use.
            if let First::One(()) = race(shutdown.as_mut(), self.refresh()).await {
                return;
            }
        }
    }

    /// Returns `None` if there is no subscription for now.
    async fn subscribed(&self) -> Option<Notices> {
        let notifier = self.0.notifier.as_ref()?;
        match race(notifier.subscribe(&self.0.topic), self.0.clock.sleep(self.0.config.refresh_interval)).await {
            First::One(subscribed) => subscribed.ok(),
            First::Other(()) => None,
        }
    }
}
