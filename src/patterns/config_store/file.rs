//! A file that is read again and again: for configuration that a platform mounts.
use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::time::{Clock, Instant};

/// Shortest interval between two reads.
const SHORTEST: Duration = Duration::from_millis(10);

/// Watches a file: [`FileWatch::changed`] yields its text whenever it differs. It is read by its
/// path every `interval`, which is 10 ms at least, and compared. So a link to another file is seen,
/// as platforms mount it, and so is a file that is rewritten in place.
///
/// ```
/// use std::time::Duration;
/// use steadfast::config_store::watch_file;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> std::io::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("service.toml");
/// std::fs::write(&path, "retries = 3")?;
/// let mut file = watch_file(&path, Duration::from_secs(5));
/// assert_eq!(file.changed().await?, "retries = 3");
///
/// std::fs::write(&path, "retries = 4")?;
/// assert_eq!(file.changed().await?, "retries = 4");
/// # Ok(())
/// # }
/// ```
pub fn watch_file(path: impl AsRef<Path>, interval: Duration) -> FileWatch {
    FileWatch {
        path: path.as_ref().to_owned(),
        interval: interval.max(SHORTEST),
        clock: Clock::default(),
        last: None,
        due: None,
    }
}

/// A file that is watched, from [`watch_file`].
#[derive(Debug)]
pub struct FileWatch {
    path: PathBuf,
    interval: Duration,
    clock: Clock,
    /// The last result that was yielded: bytes, or the kind of an error.
    last: Option<Result<Vec<u8>, io::ErrorKind>>,
    due: Option<Instant>,
}

impl FileWatch {
    /// Sets the clock. tokio's by default.
    #[must_use]
    pub fn clock(mut self, clock: &Clock) -> Self {
        self.clock = clock.clone();
        self
    }

    /// Waits for the next text. The first one comes at once. A text that was half written is
    /// followed by the whole one, so the caller goes on with its settings when it refuses a text.
    ///
    /// # Errors
    /// The file cannot be read, or is no text in UTF-8 (`InvalidData`): once, until that changes.
    ///
    /// # Cancel safety
    /// Dropping the future loses no change.
    pub async fn changed(&mut self) -> io::Result<String> {
        loop {
            if let Some(due) = self.due {
                self.clock.sleep_until(due).await;
            }
            self.due = Some(self.clock.now() + self.interval);
            // A small file, read on this thread: nothing is spawned.
            let read = fs::read(&self.path);
            let seen = read.as_ref().map(Vec::clone).map_err(io::Error::kind);
            if self.last.as_ref() == Some(&seen) {
                continue;
            }
            self.last = Some(seen);
            let text = String::from_utf8(read?);
            return text.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "the file is no text in UTF-8"));
        }
    }
}
