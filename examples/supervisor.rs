//! Children that panic, hang, end, block their thread and take all the processor they get, under one supervisor; and a
//! process that is killed in the middle of 10,000 steps.
//!
//! 1. On a manual clock, a child that always wants to run gets a quarter of the time.
//! 2. In real time, on one thread, a neighbour measures how late its timers are: beside that child without a limit, and
//!    with one.
//! 3. A supervisor runs children with every fault, and stops. It names those that did not stop.
//! 4. A process does 10,000 steps and saves each hundredth. It is killed, and another one goes on.
//!
//! The last line is the result as JSON.
#![allow(missing_docs, reason = "a program has no readers from outside")]
mod common;

use std::{
    future::{pending, poll_fn},
    path::{Path, PathBuf},
    process::{ExitCode, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
        mpsc,
    },
    task::Poll,
    time::Duration,
};

use clap::Parser;
use common::{Result, say};
use serde_json::json;
use steadfast::{
    backend,
    supervisor::{
        CheckpointError, Child, ChildContext, Restart, Supervisor, SupervisorConfig, SupervisorError, Unstopped,
    },
    time::{Clock, ManualClock},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::Command,
    runtime::Builder,
};

const MS: fn(u64) -> Duration = Duration::from_millis;
const SHARE: f64 = 0.25;
const STEPS: u64 = 10_000;
const EVERY: u64 = 100;
/// Number of steps after which the process waits until their lines were read.
const BATCH: u64 = 10;

/// Children with every fault under one supervisor, and a process that is killed in the middle of 10,000 steps.
#[derive(Parser)]
struct Args {
    /// Number of kills of the process that does the steps.
    #[arg(long, default_value_t = 1)]
    kills: u64,
    #[arg(long, hide = true)]
    steps: Option<PathBuf>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match args.steps {
        Some(file) => common::end(block_on(do_steps(&file)).map(|()| (json!({}), true))),
        None => common::end(show(args.kills)),
    }
}

fn block_on<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(future)
}

fn show(kills: u64) -> Result<(serde_json::Value, bool)> {
    let poll_share = share_on_a_manual_clock()?;
    say(format!("a child that always wants to run got {poll_share:.3} of the time"));
    let [alone, without, with] = [None, Some(1.0), Some(SHARE)].map(delay_of_a_neighbour);
    let (alone, without, with) = (alone?, without?, with?);
    for (what, at) in [("median", 0), ("99th percentile", 1)] {
        let (alone, without, with) = (alone[at], without[at], with[at]);
        say(format!("{what} of a neighbour's delay: {alone:?} alone, {without:?} beside it, {with:?} with its limit"));
    }
    let faults = block_on(faults())?;
    say(format!("{} restarts; did not stop: {}", faults.restarts, faults.named.join(", ")));
    let (repeated, lost) = block_on(steps_with_kills(kills))?;
    say(format!("{STEPS} steps, {kills} kills: {repeated} repeated, {lost} lost"));
    let ms = |d: Duration| d.as_micros() as f64 / 1e3;
    let summary = json!({
        "restarts": faults.restarts,
        "escalations": faults.escalations,
        "repeated_steps": repeated,
        "lost_steps": lost,
        "named_at_stop": faults.named,
        "poll_share": (poll_share * 1e3).round() / 1e3,
        "neighbours_p50_ms": { "alone": ms(alone[0]), "without_limit": ms(without[0]), "with_limit": ms(with[0]) },
        "neighbours_p99_ms": { "alone": ms(alone[1]), "without_limit": ms(without[1]), "with_limit": ms(with[1]) },
    });
    let is_named = faults.named == ["hangs: Dropped", "blocks: Blocked"];
    let holds = (poll_share - SHARE).abs() <= 0.02
        && repeated <= kills * EVERY
        && lost == 0
        && is_named
        // One poll in a while still delays it, but not each of its turns.
        && with[0] < without[0]
        && faults.escalations == 1;
    Ok((summary, holds))
}

/// Returns a child whose polls each take this long, and that wakes itself each time.
fn hog(busy: impl Fn() + Clone + Send + Sync + 'static) -> Child {
    Child::new("hog", move |cx: ChildContext| {
        let busy = busy.clone();
        poll_fn(move |task| {
            if cx.is_stopping() {
                return Poll::Ready(Ok::<_, String>(()));
            }
            busy();
            task.waker().wake_by_ref();
            Poll::Pending
        })
    })
}

fn share_on_a_manual_clock() -> Result<f64> {
    let (clock, time): (Clock, ManualClock) = Clock::manual();
    let moved = time.clone();
    // The manual clock drives one future, so the child's task is polled beside the supervisor.
    let tasks = Arc::new(Mutex::new(Vec::new()));
    let spawned = tasks.clone();
    let supervisor = Supervisor::builder(SupervisorConfig::default())
        .clock(&clock)
        .spawner(move |task| spawned.lock().unwrap_or_else(|e| e.into_inner()).push(task))
        .child(hog(move || moved.advance(MS(10))).max_poll_share(SHARE))
        .build()?;
    let run = async {
        let mut run = Box::pin(supervisor.run(clock.sleep(Duration::from_secs(60))));
        let mut running: Vec<std::pin::Pin<Box<dyn Future<Output = ()> + Send>>> = Vec::new();
        poll_fn(move |cx| {
            let polled = run.as_mut().poll(cx);
            running.append(&mut tasks.lock().unwrap_or_else(|e| e.into_inner()));
            running.retain_mut(|task| task.as_mut().poll(cx).is_pending());
            polled
        })
        .await
    };
    let began = clock.now();
    time.block_on(run)?;
    Ok(supervisor.state()[0].poll_time.as_secs_f64() / (clock.now() - began).as_secs_f64())
}

/// Runs a busy child with this share beside a task that sleeps for a millisecond at a time, on one thread. Returns the median
/// and the 99th percentile of its delays.
fn delay_of_a_neighbour(share: Option<f64>) -> Result<[Duration; 2]> {
    let clock = Clock::tokio();
    let delays = Arc::new(Mutex::new(Vec::new()));
    let (seen, timer) = (delays.clone(), clock.clone());
    let neighbour = Child::new("neighbour", move |cx: ChildContext| {
        let (seen, timer) = (seen.clone(), timer.clone());
        async move {
            while !cx.is_stopping() {
                let due = timer.now() + MS(1);
                timer.sleep_until(due).await;
                seen.lock().unwrap_or_else(|e| e.into_inner()).push(timer.now() - due);
            }
            Ok::<_, String>(())
        }
    });
    let spins = clock.clone();
    let busy = move || {
        let until = spins.now() + MS(5);
        while spins.now() < until {
            std::hint::spin_loop();
        }
    };
    let built = Supervisor::builder(SupervisorConfig::default()).child(neighbour);
    let built = match share {
        Some(share) => built.child(hog(busy).max_poll_share(share)),
        None => built,
    };
    let supervisor = built.build()?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { supervisor.run(clock.sleep(Duration::from_secs(2))).await })?;
    let mut delays = delays.lock().unwrap_or_else(|e| e.into_inner());
    delays.sort();
    Ok([50, 99].map(|percent| delays.get(delays.len() * percent / 100).copied().unwrap_or_default()))
}

struct Faults {
    restarts: u64,
    escalations: u32,
    named: Vec<String>,
}

async fn faults() -> Result<Faults> {
    let (release, blocked) = mpsc::channel::<()>();
    let blocked = Arc::new(Mutex::new(blocked));
    let config = SupervisorConfig::default().stop_timeout(MS(300)).shutdown_timeout(MS(2000)).max_restarts(6);
    let clock = Clock::tokio();
    let (ended, started) = (Arc::new(AtomicBool::new(false)), clock.now());
    let panics = Child::new("panics", |cx: ChildContext| async move {
        assert!(cx.instance() > 3, "a bug, for the first three times");
        cx.ready();
        cx.stopping().await;
        Ok::<_, String>(())
    });
    let ends = ended.clone();
    let ends = Child::new("ends", move |_| {
        let ends = ends.clone();
        async move { if ends.swap(true, SeqCst) { Ok(()) } else { Err("an error, for once") } }
    });
    let hangs = Child::new("hangs", |_| pending::<std::result::Result<(), String>>());
    let blocks = Child::new("blocks", move |cx: ChildContext| {
        let blocked = blocked.clone();
        async move {
            cx.stopping().await;
            // A blocking call, which no supervisor can end.
            let _ = blocked.lock().unwrap_or_else(|e| e.into_inner()).recv();
            Ok::<_, String>(())
        }
    });
    // A nested supervisor that gives up: one failure of its child, which is not needed.
    let bad = Child::new("bad", |_| async { Err::<(), _>("always") });
    let nested = Supervisor::builder(config.max_restarts(0)).child(bad).build()?;
    let alone = nested.run(pending()).await;
    let escalations = u32::from(matches!(alone, Err(SupervisorError::Escalated { .. })));
    let supervisor = Supervisor::builder(config)
        .name("faults")
        .child(panics.waits_for_ready())
        .child(ends.restart(Restart::Transient))
        .child(hangs)
        .child(Child::supervisor("nested", nested).restart(Restart::Temporary))
        .child(blocks)
        .build()?;
    let report = supervisor.run(clock.sleep(Duration::from_secs(3))).await?;
    let took = clock.now() - started;
    drop(release);
    // After two seconds of it the stop goes on without the child that blocks, which has no end.
    if took > Duration::from_secs(30) {
        return Err(format!("the stop took {took:?}").into());
    }
    let how = |how| match how {
        Unstopped::Dropped => "Dropped",
        Unstopped::Blocked => "Blocked",
        _ => "?",
    };
    let named = report.unstopped.iter().map(|child| format!("{}: {}", child.child, how(child.how)));
    let restarts = supervisor.state().iter().map(|child| child.restarts).sum();
    Ok(Faults { restarts, escalations, named: named.collect() })
}

/// Does the steps that are left. Each is a line of the output.
async fn do_steps(file: &Path) -> Result<()> {
    let store = backend::open(&format!("sqlite:{}", file.display())).await?.store();
    let steps = Child::new("steps", |cx: ChildContext| async move {
        let mut reader = BufReader::new(tokio::io::stdin()).lines();
        let last = cx.checkpoint().await?;
        let from = last.and_then(|bytes| Some(u64::from_be_bytes(bytes[..].try_into().ok()?)));
        for step in from.unwrap_or(0)..STEPS {
            say(format!("{step}"));
            if (step + 1) % EVERY == 0 {
                cx.save_checkpoint((step + 1).to_be_bytes().to_vec()).await?;
            }
            // No further ahead of its reader than a kill could show.
            if (step + 1) % BATCH == 0 {
                let _ = reader.next_line().await;
            }
        }
        Ok::<_, CheckpointError>(())
    });
    let built = Supervisor::builder(SupervisorConfig::default()).name("steps").checkpoints(store);
    let supervisor = built.child(steps.restart(Restart::Transient)).build()?;
    supervisor.run(pending()).await?;
    Ok(())
}

/// Returns the number of steps that were repeated, and of those that were never done.
async fn steps_with_kills(kills: u64) -> Result<(u64, u64)> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("steps.db");
    let mut done = vec![0u64; STEPS as usize];
    for run in 0..=kills {
        let mut process = Command::new(std::env::current_exe()?)
            .arg("--steps")
            .arg(&file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let output = process.stdout.take().ok_or("a process without output")?;
        let mut input = process.stdin.take().ok_or("a process without input")?;
        let mut lines = BufReader::new(output).lines();
        // Between two saves, and further on each time.
        let last = STEPS * (run + 1) / (kills + 1) - EVERY / 2;
        while let Some(line) = lines.next_line().await? {
            let Ok(step) = line.parse::<u64>() else { continue };
            done[step as usize] += 1;
            if (step + 1) % BATCH == 0 {
                // A process that was killed reads nothing.
                let _ = input.write_all(b"\n").await;
            }
            if step == last && run < kills {
                process.start_kill()?;
            }
        }
        process.wait().await?;
    }
    let repeated = done.iter().map(|times| times.saturating_sub(1)).sum();
    Ok((repeated, done.iter().filter(|times| **times == 0).count() as u64))
}
