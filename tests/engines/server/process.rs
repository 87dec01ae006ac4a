//! A server's processes, its folder and port, and the watcher that ends what is left.
use std::{
    env, fs,
    io::Write as _,
    net::TcpListener,
    os::unix::{fs::chown, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicU16, AtomicUsize, Ordering::Relaxed},
    },
    time::Instant,
};

use super::{PATIENCE, wait_until};

/// Ends the servers and deletes the folders that this process leaves behind, however it ends.
const WATCHER: &str = r#"
trap '' INT TERM HUP
children() { cat /proc/"$1"/task/*/children 2>/dev/null; }
pids=' ' dirs=
while read -r what arg; do
  case $what in
    pid) pids="$pids$arg " ;;
    gone) pids="${pids%% $arg *} ${pids#* $arg }" ;;
    dir) dirs="$dirs $arg" ;;
  esac
done
for pid in $pids; do
  all="$pid $(children "$pid")"
  kill -KILL $all
done 2>/dev/null
sleep 0.1
rm -rf $dirs
"#;

/// Tells the watcher something. It starts with the first line.
fn tell(line: &str) {
    static WATCHERS: OnceLock<Mutex<ChildStdin>> = OnceLock::new();
    let watcher = WATCHERS.get_or_init(|| {
        let mut sh = Command::new("sh");
        sh.args(["-c", WATCHER]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        Mutex::new(sh.spawn().expect("sh runs").stdin.take().expect("a pipe"))
    });
    let mut watcher = watcher.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    writeln!(watcher, "{line}").expect("the watcher lives as long as this process");
}

/// Returns the folder of all servers of this process: in memory if there is room, since syncs of a disk cost the tests most
/// of their time. `STEADFAST_SERVERS_DIR` names another one, such as one on a disk for benches.
fn root() -> &'static Path {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    ROOT.get_or_init(|| {
        let memory = || {
            let free = Command::new("df").args(["-Pk", "/dev/shm"]).output().ok()?;
            let text = String::from_utf8(free.stdout).ok()?;
            let blocks: u64 = text.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()?;
            (blocks > 4 << 20).then(|| PathBuf::from("/dev/shm"))
        };
        let base =
            env::var_os("STEADFAST_SERVERS_DIR").map(PathBuf::from).or_else(memory).unwrap_or_else(env::temp_dir);
        let root = base.join(format!("steadfast-servers-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap_or_else(|error| panic!("{}: {error}", root.display()));
        tell(&format!("dir {}", root.display()));
        root
    })
}

/// A folder of a server. It is deleted with its value.
#[derive(Debug)]
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new(name: &str) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let path = root().join(format!("{name}-{}", NUMBER.fetch_add(1, Relaxed)));
        fs::create_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Account::own(&path);
        Self(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns a port that is free, and that the system gives to no client: clients connect while the server is down. Nor is it
/// given to another server with the one 10,000 above it, which a Redis cluster takes for its bus.
pub(crate) fn free_port() -> u16 {
    const FIRST: u16 = 15_000;
    const COUNT: u16 = 7_500;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Processes that run side by side begin at different ports.
    let begin = (std::process::id() % 500) as u16 * 15;
    loop {
        let port = FIRST + (begin + NEXT.fetch_add(1, Relaxed)) % COUNT;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// The account under which servers run that refuse to run as root.
#[derive(Debug, Clone, Copy)]
pub(super) struct Account {
    uid: u32,
    gid: u32,
}

impl Account {
    /// Returns the account, or `None` if this process is not root, and runs the servers as itself.
    pub(super) fn get() -> Option<Self> {
        static ACCOUNT: OnceLock<Option<Account>> = OnceLock::new();
        *ACCOUNT.get_or_init(|| {
            use std::os::unix::fs::MetadataExt as _;
            if fs::metadata("/proc/self").ok()?.uid() != 0 {
                return None;
            }
            let accounts = fs::read_to_string("/etc/passwd").ok()?;
            let named = |name: &str| {
                let line = accounts.lines().find(|line| line.split(':').next() == Some(name))?;
                let mut ids = line.split(':').skip(2);
                Some(Self { uid: ids.next()?.parse().ok()?, gid: ids.next()?.parse().ok()? })
            };
            named("postgres").or_else(|| named("nobody"))
        })
    }

    /// Hands a file or folder to the account.
    pub(super) fn own(path: &Path) {
        if let Some(account) = Self::get() {
            chown(path, Some(account.uid), Some(account.gid)).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        }
    }

    /// Lets the command run under the account.
    pub(super) fn take(command: &mut Command) -> &mut Command {
        match Self::get() {
            Some(account) => command.uid(account.uid).gid(account.gid),
            None => command,
        }
    }
}

/// Returns the path of a program, from these folders or `PATH`; otherwise the way to install it.
pub(super) fn find(program: &str, variable: &str, folders: &[PathBuf], install: &str) -> Result<PathBuf, String> {
    let named = env::var_os(variable).map(PathBuf::from);
    // The variable names the program or its folder.
    let named = named.map(|named| if named.is_dir() { named.join(program) } else { named });
    let path = env::var_os("PATH").unwrap_or_default();
    let in_path = env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    let candidates = folders.iter().cloned().chain(in_path).map(|folder| folder.join(program));
    let found = match named {
        Some(named) => Some(named).filter(|file| file.is_file()),
        None => candidates.into_iter().find(|file| file.is_file()),
    };
    found.ok_or_else(|| format!("`{program}` is missing: install it ({install}), or set {variable} to its path"))
}

/// Returns the command of a program that was looked for.
///
/// # Panics
/// If it is missing, with the way to install it.
#[track_caller]
pub(super) fn command(found: Result<PathBuf, String>) -> Command {
    Command::new(found.unwrap_or_else(|missing| panic!("{missing}")))
}

/// Runs a command to its end, and returns its output.
#[track_caller]
pub(super) fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}\n{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// A server's processes, which can be killed, stopped and started again.
#[derive(Debug)]
pub(super) struct Process {
    name: String,
    log: PathBuf,
    running: Mutex<Option<Child>>,
}

impl Process {
    /// Creates a process that does not run yet; it writes to a log in this folder.
    pub(super) fn new(name: &str, folder: &Path) -> Self {
        Self { name: name.to_owned(), log: folder.join("log"), running: Mutex::new(None) }
    }

    fn running(&self) -> std::sync::MutexGuard<'_, Option<Child>> {
        self.running.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Starts the command, and waits until it is ready.
    #[track_caller]
    pub(super) fn start(&self, command: &mut Command, ready: impl Fn() -> bool) {
        let mut running = self.running();
        assert!(running.is_none(), "{} runs already", self.name);
        let log = fs::OpenOptions::new().create(true).append(true).open(&self.log).unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        // Ctrl-C is for the test; the watcher ends the servers.
        command.process_group(0);
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        tell(&format!("pid {}", child.id()));
        let until = Instant::now() + PATIENCE;
        loop {
            let ended = child.try_wait().unwrap();
            if let Some(status) = ended {
                tell(&format!("gone {}", child.id()));
                panic!("{}\n{} ended at its start: {status}", self.log(), self.name);
            }
            if ready() {
                break;
            }
            assert!(Instant::now() < until, "{}\n{} is not ready within {PATIENCE:?}", self.log(), self.name);
            std::thread::sleep(std::time::Duration::from_millis(3));
        }
        *running = Some(child);
    }

    /// Returns the last lines of the log.
    pub(super) fn log(&self) -> String {
        let text = self.whole_log();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    /// Returns all lines of the log.
    pub(super) fn whole_log(&self) -> String {
        fs::read(&self.log).map(|log| String::from_utf8_lossy(&log).into_owned()).unwrap_or_default()
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(self.running().as_mut().map(Child::try_wait), Some(Ok(None)))
    }

    /// Kills all processes of the server, and waits for their end. Does nothing if none runs.
    pub(super) fn kill(&self) {
        let Some(mut child) = self.running().take() else { return };
        // A stopped parent starts no more children.
        signal("-STOP", &[child.id()]);
        let children = children(child.id());
        signal("-KILL", &children);
        let _ = child.kill();
        let _ = child.wait();
        tell(&format!("gone {}", child.id()));
        wait_until("the children of a killed server end", || children.iter().all(|pid| has_ended(*pid)));
    }

    /// Sends the signal to the parent, and waits for the end. Does nothing if none runs.
    pub(super) fn end(&self, with: &str) {
        let Some(mut child) = self.running().take() else { return };
        signal("-CONT", &children(child.id()));
        signal("-CONT", &[child.id()]);
        signal(with, &[child.id()]);
        let until = Instant::now() + PATIENCE;
        while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let _ = child.kill();
        let _ = child.wait();
        tell(&format!("gone {}", child.id()));
    }

    /// Stops all processes of the server. Its connections stay open, and the system accepts new ones for it.
    pub(super) fn stop(&self) {
        if let Some(child) = &*self.running() {
            signal("-STOP", &[child.id()]);
            signal("-STOP", &children(child.id()));
        }
    }

    /// Lets all processes of the server continue.
    pub(super) fn cont(&self) {
        if let Some(child) = &*self.running() {
            signal("-CONT", &children(child.id()));
            signal("-CONT", &[child.id()]);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn signal(which: &str, pids: &[u32]) {
    if !pids.is_empty() {
        let pids = pids.iter().map(u32::to_string);
        // A process may have ended by itself.
        let _ = Command::new("kill").arg(which).args(pids).stderr(Stdio::null()).status();
    }
}

fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let texts = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    texts.flat_map(|text| text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
}

/// Returns `true` if the process is no more, or only its parent has not asked for its end yet.
fn has_ended(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.map_or(true, |stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['Z', 'X'])))
}
