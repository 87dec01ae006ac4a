//! What a directory does beside its calls: it hears of changes, and looks for itself now and then.
use std::{future::Future, pin::pin};

use super::ShardDirectory;
use crate::{
    notify::Notices,
    race::{First, race},
    time::scaled,
};

impl ShardDirectory {
    /// Keeps this process's copy of the map fresh until `shutdown` is ready: at a notice, and every
    /// [`refresh_every`](super::ShardDirectoryConfig::refresh_every), give or take a fifth. Without it a copy is refreshed when a shard
    /// refuses, which a [`FanOut`](super::FanOut) over too few shards would not notice.
    ///
    /// # Cancel safety
    /// Dropped, it stops to look.
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
            let pause = scaled(self.0.config.refresh_every, 0.8 + 0.4 * self.0.entropy.unit());
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
            // A failure is an event; the copy from before goes on.
            if let First::One(()) = race(shutdown.as_mut(), self.refresh()).await {
                return;
            }
        }
    }

    /// `None` where it has to do without for now.
    async fn subscribed(&self) -> Option<Notices> {
        let notifier = self.0.notifier.as_ref()?;
        match race(notifier.subscribe(&self.0.topic), self.0.clock.sleep(self.0.config.refresh_every)).await {
            First::One(subscribed) => subscribed.ok(),
            First::Other(()) => None,
        }
    }
}
