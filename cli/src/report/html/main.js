"use strict";
// Parts of which the recording has nothing are left out.
function part(section, present, build) {
  if (present) build();
  else $(section + "-section").hidden = true;
}
part("timeline", timeline.ok, timeline.draw);
part("kernels", data.kernels.rows.length > 0, kernelTable);
part("flame", flame.ok, flame.draw);
part("stalls", data.stalls.rows.length > 0, stallTable);
part("ranges", data.ranges.rows.length > 0, rangeTable);
part("nodes", data.nodes.rows.length > 0, nodeTable);
part("errors", data.errors.length > 0, () => {
  for (const text of data.errors) $("errors").append(element("p", text));
});
for (const text of data.timeline.cut) note("timeline-notes", "drawn: " + text);
const redraw = () => {
  if (timeline.ok) later(timeline.draw);
  if (flame.ok) later(flame.draw);
};
addEventListener("resize", redraw);
dark.addEventListener("change", () => location.reload());
