//! Tasks of several processes on one thread, each polled when it is woken; killing a process drops
//! its tasks.
use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Wake, Waker},
};

pub(super) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Spawns tasks into a group: the life of a process, or 0 for the world's own.
#[derive(Clone, Default)]
pub(super) struct Spawner(Arc<Mutex<Vec<(u64, Task)>>>);

impl Spawner {
    pub(super) fn spawn(&self, group: u64, task: impl Future<Output = ()> + Send + 'static) {
        self.0.lock().unwrap().push((group, Box::pin(task)));
    }
}

#[derive(Default)]
pub(super) struct Exec {
    pub(super) spawner: Spawner,
    tasks: Vec<Option<(u64, Task)>>,
    free: Vec<usize>,
    ready: Arc<Mutex<VecDeque<usize>>>,
}

struct Woken(usize, Arc<Mutex<VecDeque<usize>>>);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.1.lock().unwrap().push_back(self.0);
    }
}

impl Exec {
    /// Polls until nothing makes progress at this instant.
    pub(super) fn settle(&mut self) {
        for polls in 0.. {
            assert!(polls < 1_000_000, "tasks wake each other without end");
            for task in std::mem::take(&mut *self.spawner.0.lock().unwrap()) {
                let at = self.free.pop().unwrap_or_else(|| {
                    self.tasks.push(None);
                    self.tasks.len() - 1
                });
                self.tasks[at] = Some(task);
                self.ready.lock().unwrap().push_back(at);
            }
            let Some(at) = self.ready.lock().unwrap().pop_front() else { return };
            let Some((_, task)) = &mut self.tasks[at] else { continue };
            let waker = Waker::from(Arc::new(Woken(at, self.ready.clone())));
            if task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                self.tasks[at] = None;
                self.free.push(at);
            }
        }
    }

    pub(super) fn kill(&mut self, group: u64) {
        self.spawner.0.lock().unwrap().retain(|(of, _)| *of != group);
        for (at, task) in self.tasks.iter_mut().enumerate() {
            if task.as_ref().is_some_and(|(of, _)| *of == group) {
                *task = None;
                self.free.push(at);
            }
        }
    }
}
