//! The sources of the crate, for tests that read them.
use std::{fs, path::Path};

fn read(root: &Path, folder: &Path, files: &mut Vec<(String, String)>) {
    let mut entries: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            read(root, &path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let parts = path.strip_prefix(root).unwrap().iter().map(|part| part.to_str().unwrap());
            files.push((parts.collect::<Vec<_>>().join("/"), fs::read_to_string(&path).unwrap()));
        }
    }
}

/// The files of a folder of the crate in order: the path below it, with `/`, and the text.
#[allow(dead_code, reason = "not each user reads other folders")]
pub(crate) fn texts_of(folder: &str) -> Vec<(String, String)> {
    let (root, mut files) = (Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), Vec::new());
    read(&root, &root, &mut files);
    files
}

/// The files of `src`.
pub(crate) fn texts() -> Vec<(String, String)> {
    texts_of("src")
}
