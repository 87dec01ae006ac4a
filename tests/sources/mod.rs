//! The sources of the crate, for tests that read them.
use std::{fs, path::Path};

fn read(folder: &Path, files: &mut Vec<(String, String)>) {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut entries: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            read(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let parts = path.strip_prefix(&src).unwrap().iter().map(|part| part.to_str().unwrap());
            files.push((parts.collect::<Vec<_>>().join("/"), fs::read_to_string(&path).unwrap()));
        }
    }
}

/// The files of `src` in order: the path below `src`, with `/`, and the text.
pub(crate) fn texts() -> Vec<(String, String)> {
    let mut files = Vec::new();
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
    files
}
