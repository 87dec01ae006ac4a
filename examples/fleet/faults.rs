//! The faults: which, when, and for how long; each is recorded, since it may explain what is seen.
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use steadfast::{
    entropy::Entropy,
    time::{Clock, Instant},
};
use tokio::task::JoinSet;

use crate::{Args, MS, Result, engine::Engine, log::Logs, logs_of, processes::Processes, sweeper::TERM, world::World};

/// A pause that lasts longer than a term, and than the lease of an order.
const LONG: Duration = Duration::from_millis(5_000);

/// Kind of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Kill,
    Pause,
    /// The connections of a process were closed, or nothing passed them.
    Cut,
    /// A server of the engine was killed and started again.
    Restart,
    /// The payment gateway failed.
    Gateway,
}

/// A fault that has happened, in milliseconds of the machine's clock.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    pub kind: Kind,
    /// The process, or the server of the engine.
    pub node: usize,
    pub from: u64,
    pub until: u64,
}

/// The faults of a run.
#[derive(Clone)]
struct Disturber {
    engine: Arc<Engine>,
    processes: Arc<Processes>,
    world: Arc<World>,
    happened: Arc<Mutex<Vec<Fault>>>,
    clock: Clock,
}

/// Disturbs the service for the time of the run. Returns when all faults have ended.
pub async fn disturb(
    args: &Args,
    engine: &Arc<Engine>,
    processes: &Arc<Processes>,
    world: &Arc<World>,
    logs: &Mutex<Logs>,
) -> Result<Vec<Fault>> {
    let (entropy, clock) = (Entropy::from_seed(args.seed), Clock::tokio());
    let disturber = Disturber {
        engine: engine.clone(),
        processes: processes.clone(),
        world: world.clone(),
        happened: Arc::default(),
        clock: clock.clone(),
    };
    let any = || entropy.up_to(u64::from(args.processes) - 1) as usize;
    let leader = || logs_of(logs).leader();
    let mut running = JoinSet::new();
    let gateway = disturber.clone();
    let (seconds, start) = (args.seconds, clock.now());
    running.spawn(async move { gateway.fail_gateway(start, seconds).await });

    // Each round has a kill, and one other fault.
    let (begin, time) = (start + MS(1_000), Duration::from_secs(args.seconds) - MS(3_000));
    let rounds = args.kills.max(1);
    for round in 0..rounds {
        let at = |share: f64| begin + time.mul_f64((f64::from(round) + share) / f64::from(rounds));
        clock.sleep_until(at(0.1 + 0.3 * entropy.unit())).await;
        if round < args.kills {
            let node = match (round % 3, any(), leader()) {
                // Each third kill is the leader's. None is before its pause, which has to meet it.
                (2, _, Some(leader)) => leader,
                (0, node, Some(leader)) if node == leader => (node + 1) % args.processes as usize,
                (_, node, _) => node,
            };
            let disturber = disturber.clone();
            running.spawn(async move { disturber.kill(node).await });
        }
        clock.sleep_until(at(0.6 + 0.3 * entropy.unit())).await;
        let (disturber, node, servers) = (disturber.clone(), any(), engine.servers());
        let server = entropy.up_to(servers.saturating_sub(1) as u64) as usize;
        let (short, is_cut) = (MS(300 + entropy.up_to(2_000)), entropy.up_to(1) == 0);
        // Some connections are half-open for longer than a request may take.
        let held = if entropy.up_to(3) == 0 { MS(6_000) } else { short };
        let leader = leader().unwrap_or(node);
        running.spawn(async move {
            match round % 3 {
                // The leader stands still for longer than its term, and writes late.
                0 => disturber.pause(leader, LONG).await,
                1 if servers > 0 => disturber.cut(node, if is_cut { Duration::ZERO } else { held }).await,
                2 if servers > 0 => disturber.restart(server, short).await,
                _ => disturber.pause(node, short).await,
            }
        });
    }
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    let happened = disturber.happened.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok(happened)
}

impl Disturber {
    fn now(&self) -> u64 {
        self.clock.wall().as_millis()
    }

    fn record(&self, kind: Kind, node: usize, from: u64) {
        let fault = Fault { kind, node, from, until: self.now() };
        self.happened.lock().unwrap_or_else(PoisonError::into_inner).push(fault);
    }

    async fn kill(&self, node: usize) -> Result<()> {
        let node = self.processes.running(node).await;
        let from = self.now();
        self.processes.kill(node).await?;
        self.record(Kind::Kill, node, from);
        Ok(())
    }

    async fn pause(&self, node: usize, time: Duration) -> Result<()> {
        let from = self.now();
        self.processes.pause(node, time).await?;
        self.record(Kind::Pause, node, from);
        Ok(())
    }

    /// Closes the connections of a process; before that, nothing passes them for this time.
    async fn cut(&self, node: usize, time: Duration) -> Result<()> {
        let (from, detour) = (self.now(), self.processes.detour(node));
        if !time.is_zero() {
            detour.hold();
            self.clock.sleep(time).await;
        }
        detour.cut();
        detour.pass();
        self.record(Kind::Cut, node, from);
        Ok(())
    }

    /// Kills a server of the engine, and starts it again after this time.
    async fn restart(&self, server: usize, time: Duration) -> Result<()> {
        let from = self.now();
        let engine = self.engine.clone();
        tokio::task::spawn_blocking(move || engine.kill_server(server)).await??;
        self.clock.sleep(time).await;
        let engine = self.engine.clone();
        tokio::task::spawn_blocking(move || engine.start_server_again(server)).await?;
        self.record(Kind::Restart, server, from);
        Ok(())
    }

    /// Lets the gateway fail, twice in a minute, and at least once.
    async fn fail_gateway(&self, start: Instant, seconds: u64) -> Result<()> {
        let times = seconds.div_ceil(30);
        for time in 0..times {
            let share = (time as f64 + 0.5) / times as f64;
            self.clock.sleep_until(start + Duration::from_secs(seconds).mul_f64(share * 0.9)).await;
            let from = self.now();
            self.world.set_down(true);
            self.clock.sleep(TERM).await;
            self.world.set_down(false);
            self.record(Kind::Gateway, 0, from);
        }
        Ok(())
    }
}
