//! The compiler's messages for the usual mistakes.
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
fn library(folder: &Path) -> PathBuf {
    let built = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).filter(|path| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with("libsteadfast-") && name.ends_with(".rlib")
    });
    let age = |path: &PathBuf| fs::metadata(path).unwrap().modified().unwrap();
    built.max_by_key(age).unwrap_or_else(|| panic!("no `libsteadfast-*.rlib` in {}", folder.display()))
}

/// Compiles a program. Returns the compiler's message if it does not compile.
fn compile(program: &Path, library: &Path) -> Option<String> {
    let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join(program.file_stem().unwrap()).with_extension("rmeta");
    let mut external = std::ffi::OsString::from("steadfast=");
    external.push(library);
    let mut dependencies = std::ffi::OsString::from("dependency=");
    dependencies.push(library.parent().unwrap());
    let compiler = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let run = Command::new(compiler)
        .args(["--edition", "2024", "--emit", "metadata", "--color", "never", "--diagnostic-width", "1000"])
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
    let mut folder = env::current_exe().unwrap();
    folder.pop();
    let library = library(&folder);
    let programs = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/compile_fail")).unwrap();
    let mut programs: Vec<_> = programs.map(|file| file.unwrap().path()).collect();
    programs.sort();
    assert!(programs.len() >= 19, "{programs:?}");
    let (programs, wrong) = (Mutex::new(programs), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let Some(program) = programs.lock().unwrap().pop() else { return };
                    let text = fs::read_to_string(&program).unwrap();
                    let expected: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("//~ ")).collect();
                    assert!(!expected.is_empty(), "{} expects no message", program.display());
                    match compile(&program, &library) {
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
