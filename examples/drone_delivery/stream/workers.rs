//! The processes of the workers, which are killed and come back.
use std::{
    env,
    io::{self, BufRead as _, BufReader},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use steadfast::time::{Clock, Instant};

use super::worker::{Line, NAME, SERVICES};
use crate::{args::Args, engine::Engine};

/// Time for which a killed worker is away.
const AWAY: Duration = Duration::from_secs(2);

pub struct Workers {
    slots: Vec<Slot>,
    command: Box<dyn Fn(&str) -> Command + Send>,
    pub kills: u32,
}

struct Slot {
    name: String,
    child: Option<Child>,
    back_at: Option<Instant>,
    /// The last line of this life.
    line: Arc<Mutex<Line>>,
    /// The last lines of earlier lives.
    ended: Vec<Line>,
}

impl Slot {
    fn line(&self) -> Line {
        self.line.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Workers {
    pub fn start(args: &Args, engine: &Engine, services: &str) -> io::Result<Self> {
        let program = env::current_exe()?;
        let variables: Vec<(String, String)> =
            engine.variables().iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let arguments: Vec<String> = env::args().skip(1).collect();
        let services = services.to_owned();
        let command = Box::new(move |name: &str| {
            let mut command = Command::new(&program);
            command.args(&arguments).envs(variables.iter().cloned()).env(NAME, name).env(SERVICES, &services);
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            command
        });
        let names = (0..args.processes).map(|n| char::from(b'A' + (n % 26) as u8).to_string());
        let slot = |name| Slot { name, child: None, back_at: None, line: Arc::default(), ended: Vec::new() };
        let mut workers = Self { slots: names.map(slot).collect(), command, kills: 0 };
        for at in 0..workers.slots.len() {
            workers.begin(at)?;
        }
        Ok(workers)
    }

    fn begin(&mut self, at: usize) -> io::Result<()> {
        let slot = &mut self.slots[at];
        let mut child = (self.command)(&slot.name).spawn()?;
        let line: Arc<Mutex<Line>> = Arc::default();
        if let Some(out) = child.stdout.take() {
            let line = line.clone();
            std::thread::spawn(move || {
                for text in BufReader::new(out).lines().map_while(Result::ok) {
                    // A kill may cut a line short.
                    if let Ok(told) = serde_json::from_str(&text) {
                        *line.lock().unwrap_or_else(PoisonError::into_inner) = told;
                    }
                }
            });
        }
        slot.ended.push(std::mem::replace(&mut slot.line, line).lock().unwrap_or_else(PoisonError::into_inner).clone());
        (slot.child, slot.back_at) = (Some(child), None);
        Ok(())
    }

    /// Kills a worker with SIGKILL; it comes back later.
    pub fn kill(&mut self, at: usize) -> io::Result<()> {
        let slot = &mut self.slots[at];
        if let Some(mut child) = slot.child.take() {
            child.kill()?;
            child.wait()?;
            self.kills += 1;
            slot.back_at = Some(Clock::tokio().now() + AWAY);
        }
        Ok(())
    }

    /// Starts killed workers again when their time has come, and those that ended by themselves.
    pub fn revive(&mut self, now: Instant) -> io::Result<()> {
        for at in 0..self.slots.len() {
            let slot = &mut self.slots[at];
            let ended = match &mut slot.child {
                Some(child) => child.try_wait()?,
                None => None,
            };
            if let Some(status) = ended {
                return Err(io::Error::other(format!("the worker {} ended by itself: {status}", slot.name)));
            }
            if slot.back_at.is_some_and(|back_at| back_at <= now) {
                self.begin(at)?;
            }
        }
        Ok(())
    }

    /// Returns the names of the workers that run, and their last lines.
    pub fn states(&self) -> Vec<(String, Line)> {
        let running = self.slots.iter().filter(|slot| slot.child.is_some());
        running.map(|slot| (slot.name.clone(), slot.line())).collect()
    }

    /// Asks all workers to stop, and waits for them, at most so long.
    pub async fn stop(&mut self, limit: Duration) {
        for slot in &mut self.slots {
            drop(slot.child.as_mut().and_then(|child| child.stdin.take()));
        }
        let (clock, mut left) = (Clock::tokio(), limit);
        while self
            .slots
            .iter_mut()
            .any(|slot| slot.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None))))
        {
            if left.is_zero() {
                break;
            }
            let pause = Duration::from_millis(100);
            clock.sleep(pause).await;
            left = left.saturating_sub(pause);
        }
        for slot in &mut self.slots {
            if let Some(mut child) = slot.child.take() {
                // One that has not ended is killed: that loses nothing.
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }

    /// Returns the sums over all lives.
    pub fn totals(&self) -> Line {
        let mut total = Line::default();
        for line in self.slots.iter().flat_map(|slot| slot.ended.iter().cloned().chain([slot.line()])) {
            total.scheduled += line.scheduled;
            total.rejected += line.rejected;
            total.claims += line.claims;
            total.resumed += line.resumed;
            total.halted.extend(line.halted);
        }
        total
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for slot in &mut self.slots {
            if let Some(child) = &mut slot.child {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}
