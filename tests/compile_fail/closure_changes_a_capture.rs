//~ async closure does not implement `FnMut` because it captures state from its environment
//~ `&mut`: `with_state`
fn main() {
    let mut runs = 0;
    let _ = steadfast::Pipeline::new().call(async || {
        runs += 1;
        Ok::<_, ()>(())
    });
}
