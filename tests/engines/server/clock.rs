//! A server's wall clock that a test steps.
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use super::process::{Folder, find};

/// A wall clock for servers, away from the machine's by some seconds. Monotonic clocks go on.
#[derive(Debug)]
pub(crate) struct ServerClock {
    folder: Folder,
}

/// A library for `LD_PRELOAD`. It allocates nothing: a server's allocator may ask for the time.
const LIBRARY: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long offset(void) {
  char text[32] = {0};
  const char *path = getenv("STEADFAST_CLOCK");
  int file = path ? open(path, O_RDONLY) : -1;
  if (file < 0) return 0;
  long got = read(file, text, 31);
  close(file);
  return got > 0 ? atol(text) : 0;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
  int result = syscall(SYS_clock_gettime, clock, now);
  if (clock == CLOCK_REALTIME) now->tv_sec += offset();
  return result;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  now->tv_sec = time.tv_sec;
  now->tv_usec = time.tv_nsec / 1000;
  return 0;
}
time_t time(time_t *now) {
  struct timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  if (now) *now = time.tv_sec;
  return time.tv_sec;
}
"#;

/// Returns the compiled library of this process.
fn library() -> &'static Path {
    static LIBRARY_FOLDER: OnceLock<(Folder, PathBuf)> = OnceLock::new();
    let (_, library) = LIBRARY_FOLDER.get_or_init(|| {
        let folder = Folder::new("clock-library");
        let (source, library) = (folder.path().join("clock.c"), folder.path().join("clock.so"));
        fs::write(&source, LIBRARY).unwrap();
        // Rust links by it, so it is there.
        let mut compile = Command::new(
            find("cc", "STEADFAST_CC", &[], "Debian: `apt-get install gcc`")
                .unwrap_or_else(|missing| panic!("{missing}")),
        );
        let compiled = compile.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source).output().unwrap();
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        (folder, library)
    });
    library
}

impl ServerClock {
    /// Creates a clock that is the machine's.
    pub(crate) fn new() -> Self {
        let clock = Self { folder: Folder::new("clock") };
        clock.set(0);
        clock
    }

    /// Sets the clock to this many seconds after the machine's, or before it.
    pub(crate) fn set(&self, seconds: i64) {
        // Replaced as a whole, so that no server reads a part.
        let next = self.folder.path().join("next");
        fs::write(&next, seconds.to_string()).unwrap();
        fs::rename(next, self.file()).unwrap();
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("seconds")
    }

    /// Gives the clock to a server that is about to start.
    pub(super) fn give(&self, command: &mut Command) {
        command.env("LD_PRELOAD", library()).env("STEADFAST_CLOCK", self.file());
    }
}
