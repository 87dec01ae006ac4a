//! The processes of the service, as the first process starts, kills, pauses and ends them.
use std::{
    net::SocketAddr,
    process::Stdio,
    sync::{Arc, Mutex},
    time::Duration,
};

use steadfast::time::Clock;
use tokio::{
    io::AsyncWriteExt,
    process::{Child, Command},
};

use crate::{
    Args, MS, Result,
    engine::{Detour, Engine},
    log::Logs,
    logs_of,
};

/// The place of a process, in which one follows another.
#[derive(Debug)]
struct Place {
    life: u32,
    child: Child,
    is_paused: bool,
}

pub struct Processes {
    places: Vec<tokio::sync::Mutex<Place>>,
    detours: Vec<Detour>,
    args: Args,
    world: SocketAddr,
    logs: Arc<Mutex<Logs>>,
}

impl Processes {
    pub fn start(args: &Args, engine: &Engine, world: SocketAddr, logs: &Arc<Mutex<Logs>>) -> Result<Arc<Self>> {
        let detours = (0..args.processes).map(|_| engine.detour()).collect();
        let (args, logs) = (args.clone(), logs.clone());
        let mut processes = Self { places: Vec::new(), detours, args, world, logs };
        for node in 0..processes.args.processes as usize {
            let child = processes.spawn(node, 0)?;
            processes.places.push(tokio::sync::Mutex::new(Place { life: 0, child, is_paused: false }));
        }
        Ok(Arc::new(processes))
    }

    fn spawn(&self, node: usize, life: u32) -> Result<Child> {
        let mut logs = logs_of(&self.logs);
        logs.expect(node, life);
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--node", &node.to_string(), "--life", &life.to_string(), "--world", &self.world.to_string()]);
        command.args(["--processes", &self.args.processes.to_string(), "--rate", &self.args.rate.to_string()]);
        command.arg("--logs").arg(logs.folder());
        if let Some(port) = self.args.metrics {
            command.args(["--metrics", &port.to_string()]);
        }
        for plant in &self.args.plant {
            command.args(["--plant", &format!("{plant:?}").to_lowercase()]);
        }
        command.envs(self.detours[node].engine().variables());
        Ok(command.stdin(Stdio::piped()).stdout(Stdio::null()).kill_on_drop(true).spawn()?)
    }

    /// Returns the connections of a process to the engine.
    pub fn detour(&self, node: usize) -> &Detour {
        &self.detours[node]
    }

    /// Returns this process, or the next one that is not stopped: those that are shall go on late.
    pub async fn running(&self, node: usize) -> usize {
        for next in (0..self.places.len()).map(|step| (node + step) % self.places.len()) {
            if !self.places[next].lock().await.is_paused {
                return next;
            }
        }
        node
    }

    /// Kills a process with `kill -9`, and starts another in its place a little later.
    pub async fn kill(&self, node: usize) -> Result<()> {
        let mut place = self.places[node].lock().await;
        place.child.kill().await?;
        Clock::tokio().sleep(MS(200)).await;
        place.life += 1;
        place.child = self.spawn(node, place.life)?;
        place.is_paused = false;
        Ok(())
    }

    /// Stops a process for this time; a kill ends it earlier. Does nothing if it is stopped already.
    pub async fn pause(&self, node: usize, time: Duration) -> Result<()> {
        let life = {
            let mut place = self.places[node].lock().await;
            if place.is_paused {
                return Ok(());
            }
            signal(&place.child, "-STOP")?;
            place.is_paused = true;
            place.life
        };
        Clock::tokio().sleep(time).await;
        let mut place = self.places[node].lock().await;
        if place.life == life {
            signal(&place.child, "-CONT")?;
            place.is_paused = false;
        }
        Ok(())
    }

    /// Lets the processes accept no more orders.
    pub async fn drain(&self) {
        for place in &self.places {
            if let Some(input) = &mut place.lock().await.child.stdin {
                let _ = input.write_all(b"close\n").await;
            }
        }
    }

    /// Ends all processes; returns the number of those that had ended by themselves.
    pub async fn end(&self) -> usize {
        let mut ended = 0;
        for place in &self.places {
            let mut place = place.lock().await;
            ended += usize::from(!matches!(place.child.try_wait(), Ok(None)));
            drop(place.child.stdin.take());
            let _ = place.child.wait().await;
        }
        ended
    }
}

fn signal(child: &Child, signal: &str) -> Result<()> {
    let pid = child.id().ok_or("a process has ended by itself")?.to_string();
    let sent = std::process::Command::new("kill").args([signal, &pid]).status()?;
    if sent.success() { Ok(()) } else { Err(format!("kill {signal} {pid}: {sent}").into()) }
}
