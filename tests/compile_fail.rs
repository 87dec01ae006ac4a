//! The compiler's messages for the usual mistakes, and its second build after an edit.
//!
//! Each program in `compile_fail` must not compile, and each of its lines `//~ text` is part of the compiler's message.
//! Whole messages differ between versions of the compiler, so only these parts are compared. The compiler runs alone, on
//! the crate as it was built for this test: no network, and no second build.
#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Mutex,
    thread,
};

/// Returns the crate as it was built last, in the folder of this test.
fn library() -> PathBuf {
    let mut folder = env::current_exe().unwrap();
    folder.pop();
    let built = fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()).filter(|path| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with("libsteadfast-") && name.ends_with(".rlib")
    });
    let age = |path: &PathBuf| fs::metadata(path).unwrap().modified().unwrap();
    built.max_by_key(age).unwrap_or_else(|| panic!("no `libsteadfast-*.rlib` in {}", folder.display()))
}

/// Compiles a program, with these arguments. Returns the compiler's message if it does not compile.
fn compile(program: &Path, library: &Path, arguments: &[&str]) -> Option<String> {
    let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join(program.file_stem().unwrap()).with_extension("rmeta");
    let mut external = std::ffi::OsString::from("steadfast=");
    external.push(library);
    let mut dependencies = std::ffi::OsString::from("dependency=");
    dependencies.push(library.parent().unwrap());
    let compiler = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let run = Command::new(compiler)
        .args(["--edition", "2024", "--emit", "metadata", "--color", "never", "--diagnostic-width", "1000"])
        .args(arguments)
        .arg("--extern")
        .arg(external)
        .arg("-L")
        .arg(dependencies)
        .arg("-o")
        .arg(&output)
        .arg(program)
        .output()
        .unwrap();
    (!run.status.success()).then(|| String::from_utf8_lossy(&run.stderr).into_owned())
}

#[test]
fn the_compiler_explains_the_usual_mistakes() {
    let library = library();
    let programs = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/compile_fail")).unwrap();
    let mut programs: Vec<_> = programs.map(|file| file.unwrap().path()).collect();
    programs.sort();
    assert!(programs.len() >= 26, "{programs:?}");
    let (programs, wrong) = (Mutex::new(programs), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let Some(program) = programs.lock().unwrap().pop() else { return };
                    let text = fs::read_to_string(&program).unwrap();
                    let expected: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("//~ ")).collect();
                    assert!(!expected.is_empty(), "{} expects no message", program.display());
                    match compile(&program, &library, &[]) {
                        None => wrong.lock().unwrap().push(format!("{} compiles", program.display())),
                        Some(message) => {
                            let missing: Vec<_> = expected.into_iter().filter(|part| !message.contains(part)).collect();
                            if !missing.is_empty() {
                                let name = program.display();
                                wrong.lock().unwrap().push(format!("{name}: {missing:?} are missing in:\n{message}"));
                            }
                        }
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// Each way to make a call: the type of `calls`, and the call of `OPERATION`.
const DOORS: &[(&str, &str)] = &[
    ("Retry", "calls.call(OPERATION)"),
    ("Timeout", "calls.call(OPERATION)"),
    ("CircuitBreaker", "calls.call(OPERATION)"),
    ("Hedge", "calls.call(OPERATION)"),
    ("RateLimiter", "calls.call(OPERATION)"),
    ("ConcurrencyLimiter", "calls.call(OPERATION)"),
    ("AdaptiveLimiter", "calls.call(OPERATION)"),
    ("Shedder", "calls.call(OPERATION)"),
    ("ClientThrottle", "calls.call(OPERATION)"),
    ("Chaos", "calls.call(OPERATION)"),
    ("Fallback", "calls.call(OPERATION, |_| ready(Ok(1)))"),
    ("Fallback", "calls.call_marked(OPERATION, |_| ready(Ok(1)))"),
    ("Retry", "Pipeline::new().then(calls).call(OPERATION)"),
    ("Retry", "generic(calls, OPERATION)"),
    ("Plain", "calls.call(OPERATION)"),
    ("Plain", "calls.call_within(AttemptInfo::with_deadline(soon()), OPERATION)"),
    ("Plain", "calls.call_or(OPERATION, |_| ready(Ok(1)))"),
    ("Plain", "calls.call_or_marked(OPERATION, |_| ready(Ok(1)))"),
    ("Plain", "calls.call_within_or(AttemptInfo::with_deadline(soon()), OPERATION, |_| ready(Ok(1)))"),
    ("Plain", "calls.call_within_or_marked(AttemptInfo::with_deadline(soon()), OPERATION, |_| ready(Ok(1)))"),
    ("StandardPipeline", "calls.call(OPERATION)"),
    ("StandardPipeline", "calls.call_within(AttemptInfo::with_deadline(soon()), OPERATION)"),
    ("BoxedPipeline<usize, Error>", "calls.call(OPERATION)"),
    ("BoxedPipeline<usize, Error>", "calls.call_within(AttemptInfo::with_deadline(soon()), OPERATION)"),
    ("BoxedPipeline<usize, Error>", "calls.call_or(OPERATION, |_| ready(Ok(1)))"),
];

/// Operations whose async closures borrow nothing: these made the compiler panic.
const OPERATIONS: &[&str] = &[
    "async || fetch().await",
    "idempotent(async || fetch().await)",
    "not_idempotent(async || fetch().await)",
    "with_priority(Priority::High, async || fetch().await)",
    "named(&NAME, async || fetch().await)",
    "on_retry(async || fetch().await, |_: &_| ())",
    "idempotent(named(&NAME, async || fetch().await))",
    "on_retry(idempotent(async || fetch().await), |_: &_| ())",
    "idempotent(|| fetch())",
    "with_state(&mut 0, async |state| { *state += 1; fetch().await })",
    "idempotent(with_state(&mut 0, async |state| { *state += 1; fetch().await }))",
    "on_retry(with_state(&mut 0, async |state| { *state += 1; fetch().await }), |_: &_| ())",
];

/// Returns a program in which each operation goes through each way to make a call. Each function that makes a call is
/// awaited in a future that is `Send`, and `edit` is in the functions that demand it.
fn program(edit: &str) -> String {
    let head = r#"
        #![allow(dead_code, unused_imports)]
        use std::{future::{Future, ready}, io::{Error, Result}};
        use steadfast::{
            BoxedPipeline, Pipeline, Priority,
            call::{AttemptInfo, Identity, Operation, OperationName, idempotent, named, not_idempotent, on_retry, with_priority, with_state},
            chaos::Chaos, circuit_breaker::CircuitBreaker, fallback::Fallback, hedge::Hedge, retry::Retry, standard::StandardPipeline,
            throttling::{AdaptiveLimiter, ClientThrottle, ConcurrencyLimiter, RateLimiter, Shedder},
            time::{Clock, Instant}, timeout::Timeout,
        };
        type Plain = Pipeline<((Identity, Timeout), Retry)>;
        static NAME: OperationName = OperationName::new("fetch");
        async fn fetch() -> Result<usize> { Ok(1) }
        fn soon() -> Instant { Clock::tokio().now() }
        fn spawn(_: impl Future + Send + 'static) {}
        async fn generic<O: Operation<Output = usize, Error = Error>>(retry: &Retry, operation: O) -> usize {
            Pipeline::new().then(retry).call(operation).await.unwrap_or(0)
        }
        fn main() {}
    "#;
    let mut text = head.to_owned();
    for (number, ((calls, call), operation)) in
        DOORS.iter().flat_map(|door| OPERATIONS.iter().map(move |operation| (door, operation))).enumerate()
    {
        let call = call.replace("OPERATION", operation);
        text += &format!(
            "async fn called_{number}(calls: &{calls}) {{ _ = {call}.await; }}\n\
             fn spawned_{number}(calls: {calls}) {{ spawn(async move {{ called_{number}(&calls).await; {edit} }}) }}\n"
        );
    }
    text
}

/// Regression: after an edit of a function that spawned such a call, the next incremental build ended with "encountered
/// incremental compilation error with evaluate_obligation" (rust-lang/rust 154857).
#[test]
fn an_edit_around_a_call_can_be_built_incrementally() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = folder.path().join("rebuilt.rs");
    let incremental = format!("incremental={}", folder.path().join("incremental").display());
    for edit in ["", "println!();"] {
        fs::write(&file, program(edit)).unwrap();
        if let Some(message) = compile(&file, &library(), &["-C", &incremental]) {
            panic!("after the edit {edit:?}: {message}");
        }
    }
}
