//! Uploads that no client reports, and the remains of those that ended.
use std::future::Future;

use futures_util::{StreamExt, stream};

use super::{
    UploadError, UploadEvent as Event, Uploads,
    component::Inner,
    row::{Due, Upload},
};
use crate::{
    backoff::scaled,
    config::Name,
    race::race,
    store::{Row, Version},
};

/// Uploads that a sweep ends at the same time.
const AT_ONCE: usize = 8;

impl Uploads {
    /// Sweeps every [`sweep_interval`](super::UploadConfig::sweep_interval), until `shutdown` is
    /// ready. A sweep completes the uploads that no client reported, [`grace`] after the end of
    /// their URLs; it ends those without an object; and it deletes what is left of those that
    /// ended, and what their URLs wrote again. Any number of processes may run it.
    ///
    /// [`grace`]: super::UploadConfig::grace
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing: another sweep goes on.
    pub async fn run(&self, shutdown: impl Future<Output = ()>) {
        let Inner { config, clock, entropy, .. } = &*self.0;
        race(shutdown, async {
            loop {
                self.sweep().await;
                clock.sleep(scaled(config.sweep_interval, 0.9 + 0.2 * entropy.unit())).await;
            }
        })
        .await;
    }

    async fn sweep(&self) {
        let rows = &self.0.rows;
        let mut after = None;
        loop {
            let Ok(page) = rows.page(after).await else {
                return self.send(|| Event::SweepFailed { id: None });
            };
            // One that takes its time stops no other.
            stream::iter(page.rows).for_each_concurrent(AT_ONCE, |row| self.sweep_row(row)).await;
            after = page.next;
            if after.is_none() {
                return;
            }
        }
    }

    async fn sweep_row(&self, row: Row) {
        let (id, read) = self.0.rows.read(&row);
        let swept = match read {
            Ok((upload, version)) => self.sweep_one(&id, &upload, version).await,
            Err(error) => Err(self.store_failed()(error)),
        };
        if swept.is_err() {
            self.send(|| Event::SweepFailed { id: Some(Name::from(&id)) });
        }
    }

    async fn sweep_one(&self, id: &str, upload: &Upload, version: Version) -> Result<(), UploadError> {
        let Inner { rows, clock, config, .. } = &*self.0;
        match upload.due(clock.wall(), config.grace, config.sweep_interval / 2) {
            Due::Nothing => Ok(()),
            Due::Complete => match self.completed(id, true).await {
                Ok(_) | Err(UploadError::Rejected { .. } | UploadError::Unknown) => Ok(()),
                Err(error) => Err(error),
            },
            Due::Clean => self.clean(id, upload, version).await,
            Due::Forget => {
                let failed = self.store_failed();
                // What a late request wrote.
                self.delete_rest(id, upload).await?;
                rows.give_back(&upload.tag, id).await.map_err(&failed)?;
                rows.keep(id, upload, config.keep_results).await.map_err(&failed)?;
                rows.remove(id, version).await.map_err(&failed)?;
                Ok(())
            }
        }
    }
}
