//! Plots of a simulated fleet for docs/modes.md, as SVG.

use std::fmt::Write as _;
use std::path::Path;

const COLOURS: [&str; 3] = ["#1668b8", "#b3541e", "#3a7d34"];
const WIDTH: f64 = 320.0;
const HEIGHT: f64 = 200.0;
const LEFT: f64 = 44.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 170.0;

/// One value for each load and each number of instances.
pub(crate) struct Panel {
    pub(crate) title: &'static str,
    /// By number of instances, then by load.
    pub(crate) values: Vec<Vec<f64>>,
}

/// Writes a picture to the docs, if `TOLLGATE_BLESS` is set: the panels beside each other, loads from left to right, a
/// line for each number of instances.
pub(crate) fn write(file: &str, instances: &[usize], loads: &[u64], panels: &[Panel]) {
    if std::env::var_os("TOLLGATE_BLESS").is_none() {
        return;
    }
    let width = WIDTH * panels.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"{width}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n"
    );
    for (place, panel) in panels.iter().enumerate() {
        draw(&mut svg, WIDTH * place as f64, instances, loads, panel);
    }
    svg += "</svg>\n";
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    std::fs::write(docs.join(file), svg).unwrap();
}

fn draw(svg: &mut String, from: f64, instances: &[usize], loads: &[u64], panel: &Panel) {
    let left = from + LEFT;
    let most = panel
        .values
        .iter()
        .flatten()
        .fold(1e-9_f64, |a, b| a.max(*b));
    let step = (WIDTH - LEFT - 30.0) / (loads.len() - 1) as f64;
    let x = |place: usize| left + 10.0 + step * place as f64;
    let y = |value: f64| BOTTOM - value / most * (BOTTOM - TOP);
    let right = from + WIDTH - 10.0;
    // Writing to a string does not fail.
    let _ = writeln!(
        svg,
        "<text x=\"{left}\" y=\"16\" font-size=\"12\">{}</text>",
        panel.title
    );
    for share in [0.0, 0.5, 1.0] {
        let (value, at) = (most * share, y(most * share));
        let label = match most > 10.0 {
            true => format!("{value:.0}"),
            false => format!("{value:.2}"),
        };
        let _ = writeln!(
            svg,
            "<path d=\"M{left} {at:.0}H{right}\" stroke=\"#ddd\"/><text x=\"{}\" y=\"{:.0}\" text-anchor=\"end\">{label}</text>",
            left - 4.0,
            at + 4.0
        );
    }
    for (place, load) in loads.iter().enumerate() {
        let _ = writeln!(
            svg,
            "<text x=\"{:.0}\" y=\"{}\" text-anchor=\"middle\">{load}%</text>",
            x(place),
            BOTTOM + 15.0
        );
    }
    let series = panel.values.iter().zip(instances).zip(COLOURS);
    for (place, ((values, count), colour)) in series.enumerate() {
        let points = values.iter().enumerate();
        let points = points.map(|(place, value)| format!("{:.1},{:.1}", x(place), y(*value)));
        let points: Vec<String> = points.collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\
             <text x=\"{:.0}\" y=\"{}\" fill=\"{colour}\">{count} instances</text>",
            points.join(" "),
            left + 90.0 * place as f64,
            HEIGHT - 3.0
        );
    }
}
