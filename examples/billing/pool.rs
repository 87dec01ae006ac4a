//! The processes that handle items: started, watched, killed, restarted.
use std::{
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use serde::Deserialize;
use steadfast::time::Clock;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

use crate::{Result, engine::Engine};

/// Last reported state of a process.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub(crate) struct Standing {
    pub(crate) requests: u64,
    pub(crate) polls: u64,
    pub(crate) tasks: u64,
    pub(crate) handled: u64,
}

impl Standing {
    fn and(self, other: Self) -> Self {
        Self {
            requests: self.requests + other.requests,
            polls: self.polls + other.polls,
            tasks: self.tasks + other.tasks,
            handled: self.handled + other.handled,
        }
    }
}

pub(crate) struct Pool {
    folder: PathBuf,
    engine: Arc<Engine>,
    processes: Vec<(Child, Arc<Mutex<Standing>>)>,
    /// Totals of ended processes.
    gone: Standing,
}

impl Pool {
    pub(crate) fn begin(folder: &Path, engine: &Arc<Engine>, n: usize) -> Result<Self> {
        let (folder, engine) = (folder.to_owned(), engine.clone());
        let mut pool = Self { folder, engine, processes: Vec::new(), gone: Standing::default() };
        for _ in 0..n {
            let process = pool.spawn()?;
            pool.processes.push(process);
        }
        Ok(pool)
    }

    fn spawn(&self) -> Result<(Child, Arc<Mutex<Standing>>)> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--processor").arg(&self.folder).envs(self.engine.variables());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn()?;
        let out = child.stdout.take().ok_or("a process without output")?;
        let standing = Arc::new(Mutex::new(Standing::default()));
        let told = standing.clone();
        tokio::spawn(async move {
            let mut lines = BufReader::new(out).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                if let Ok(now) = serde_json::from_str(&line) {
                    *told.lock().unwrap_or_else(PoisonError::into_inner) = now;
                }
            }
        });
        Ok((child, standing))
    }

    /// Returns the sum over all processes, ended ones included.
    pub(crate) fn standing(&self) -> Standing {
        let of = |standing: &Arc<Mutex<Standing>>| *standing.lock().unwrap_or_else(PoisonError::into_inner);
        self.processes.iter().map(|(_, standing)| of(standing)).fold(self.gone, Standing::and)
    }

    /// Kills a process by SIGKILL, and starts another.
    pub(crate) async fn kill(&mut self, which: usize) -> Result<()> {
        let next = self.spawn()?;
        let at = which % self.processes.len();
        let (mut child, standing) = std::mem::replace(&mut self.processes[at], next);
        child.kill().await?;
        let last = *standing.lock().unwrap_or_else(PoisonError::into_inner);
        self.gone = self.gone.and(Standing { tasks: 0, ..last });
        Ok(())
    }

    /// Stops all processes, and waits for them.
    pub(crate) async fn end(&mut self) -> Result<()> {
        for (child, _) in &mut self.processes {
            drop(child.stdin.take());
        }
        for (child, _) in &mut self.processes {
            if !child.wait().await?.success() {
                return Err("a process failed".into());
            }
        }
        // Their last reports.
        Clock::tokio().sleep(Duration::from_millis(50)).await;
        Ok(())
    }
}
