//! Plots as SVG, without a library: lines, areas and bars on a grid. Colours come from the style of the page.

use std::fmt::Write as _;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 220.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 28.0;

/// Escapes a text for HTML and SVG.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            c if c.is_control() => escaped.push(' '),
            c => escaped.push(c),
        }
    }
    escaped
}

/// Writes a large number with a unit, such as `1.2 M`.
pub(super) fn short(number: f64) -> String {
    const UNITS: [(f64, &str); 4] = [(1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")];
    let unit = UNITS.iter().find(|(size, _)| number.abs() >= *size);
    let (number, unit) = unit.map_or((number, ""), |(size, unit)| (number / size, *unit));
    match number.fract().abs() < 0.05 || number.abs() >= 100.0 {
        true => format!("{number:.0}{unit}"),
        false => format!("{number:.1}{unit}"),
    }
}

/// A line or an area of a plot.
pub(super) struct Curve<'p> {
    /// The class that colours it, such as `allowed`.
    pub(super) class: &'static str,
    pub(super) label: &'p str,
    pub(super) points: Vec<(f64, f64)>,
    pub(super) is_area: bool,
}

/// A bar of a plot.
pub(super) struct Bar {
    pub(super) class: &'static str,
    pub(super) label: String,
    pub(super) value: f64,
    /// The text beside the bar.
    pub(super) note: String,
}

/// Returns a round number that is at least `most`: 1, 2 or 5 times a power of ten.
fn round_up(most: f64) -> f64 {
    if most <= 0.0 {
        return 1.0;
    }
    let power = 10_f64.powf(most.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0];
    let step = steps.iter().find(|step| most <= **step * power);
    step.unwrap_or(&10.0) * power
}

/// Draws curves over a horizontal axis. `ticks` are places on that axis and their texts. `title` says what the
/// plot shows, for screen readers.
pub(super) fn curves(title: &str, curves: &[Curve<'_>], ticks: &[(f64, String)]) -> String {
    let all = || curves.iter().flat_map(|curve| &curve.points);
    let (mut from, mut to, mut most) = (f64::INFINITY, f64::NEG_INFINITY, 0.0_f64);
    for (x, y) in all() {
        (from, to, most) = (from.min(*x), to.max(*x), most.max(*y));
    }
    let most = round_up(most);
    let span = if to > from { to - from } else { 1.0 };
    let x = |at: f64| LEFT + (at - from) / span * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| HEIGHT - BOTTOM - value / most * (HEIGHT - TOP - BOTTOM);
    let mut svg = open(title, HEIGHT);
    grid(&mut svg, most);
    for (at, text) in ticks {
        let (x, y) = (x(*at), HEIGHT - 8.0);
        let _ = write!(
            svg,
            "<text class=\"tick\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{}</text>",
            escaped(text)
        );
    }
    for curve in curves {
        let points = curve.points.iter();
        let points: Vec<String> = points
            .map(|(at, value)| format!("{:.1},{:.1}", x(*at), y(*value)))
            .collect();
        let (class, label) = (curve.class, escaped(curve.label));
        if curve.is_area
            && let (Some((first, _)), Some((last, _))) = (curve.points.first(), curve.points.last())
        {
            let (first, last, zero) = (x(*first), x(*last), y(0.0));
            let _ = write!(
                svg,
                "<polygon class=\"area {class}\" points=\"{first:.1},{zero:.1} {} {last:.1},{zero:.1}\"><title>{label}</title></polygon>",
                points.join(" ")
            );
        } else {
            let _ = write!(
                svg,
                "<polyline class=\"line {class}\" points=\"{}\"><title>{label}</title></polyline>",
                points.join(" ")
            );
        }
    }
    svg += "</svg>";
    let legend = curves.iter().map(|curve| {
        let (class, label) = (curve.class, escaped(curve.label));
        format!("<span class=\"key {class}\">{label}</span>")
    });
    format!(
        "{svg}<p class=\"legend\">{}</p>",
        legend.collect::<String>()
    )
}

fn open(title: &str, height: f64) -> String {
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">",
        escaped(title)
    )
}

fn grid(svg: &mut String, most: f64) {
    for step in 0..=4_u8 {
        let part = f64::from(step) / 4.0;
        let y = HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM);
        let (right, text) = (WIDTH - RIGHT, short(most * part));
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\"/>\
             <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
            LEFT - 6.0,
            y + 4.0
        );
    }
}

/// Draws horizontal bars.
pub(super) fn bars(title: &str, bars: &[Bar]) -> String {
    const ROW: f64 = 26.0;
    const LABELS: f64 = 210.0;
    const NOTES: f64 = 190.0;
    let most = bars.iter().map(|bar| bar.value).fold(0.0, f64::max);
    let most = if most > 0.0 { most } else { 1.0 };
    let height = ROW * bars.len() as f64 + 8.0;
    let mut svg = open(title, height);
    let mut y = 4.0;
    for bar in bars {
        let width = bar.value / most * (WIDTH - LABELS - NOTES);
        let (class, middle) = (bar.class, y + ROW / 2.0 + 4.0);
        let label: String = bar.label.chars().take(32).collect();
        let _ = write!(
            svg,
            "<text class=\"label\" x=\"{:.1}\" y=\"{middle:.1}\" text-anchor=\"end\">{}</text>\
             <rect class=\"bar {class}\" x=\"{LABELS}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>{}</title></rect>\
             <text class=\"tick\" x=\"{:.1}\" y=\"{middle:.1}\">{}</text>",
            LABELS - 8.0,
            escaped(&label),
            y + 3.0,
            width.max(1.0),
            ROW - 6.0,
            escaped(&bar.label),
            LABELS + width + 8.0,
            escaped(&bar.note),
        );
        y += ROW;
    }
    svg + "</svg>"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_round_numbers() {
        let ends = [0.0, 1.0, 3.0, 7.0, 11.0, 499.0, 1_000_000.0].map(round_up);
        assert_eq!(ends, [1.0, 1.0, 5.0, 10.0, 20.0, 500.0, 1_000_000.0]);
        assert_eq!(
            [999.0, 1_200.0, 2e6, 0.5].map(short),
            ["999", "1.2 k", "2 M", "0.5"]
        );
    }

    #[test]
    fn texts_cannot_close_an_element() {
        let bar = Bar {
            class: "denied",
            label: "</svg><script>".to_owned(),
            value: 1.0,
            note: "\"'&".to_owned(),
        };
        let svg = bars("<b>", &[bar]);
        assert!(!svg.contains("<script>") && !svg.contains("<b>"), "{svg}");
        assert!(svg.contains("&quot;&#39;&amp;"), "{svg}");
    }
}
