//~ async closure does not implement `FnMut` because it captures state from its environment
use steadfast::{Pipeline, call::with_state};

fn main() {
    let (mut buffer, mut runs) = (Vec::new(), 0);
    // The state is `&mut (&mut buffer, &mut runs)`.
    let _ = Pipeline::new().call(with_state(&mut buffer, async |buffer: &mut Vec<u8>| {
        runs += 1;
        buffer.push(1);
        Ok::<_, ()>(())
    }));
}
