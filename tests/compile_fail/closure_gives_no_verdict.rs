//~ does not classify results of type
//~ -> Verdict`
fn main() {
    let calls = steadfast::Pipeline::new().classify(|result: &Result<u8, ()>| result.is_ok());
    let _ = calls.call(|| async { Ok::<u8, ()>(7) });
}
